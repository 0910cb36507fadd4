//! `roadstead lab`: the documents as guided lessons, in a namespace of their own.
//!
//! Where the reader is, is kept in a ConfigMap of that namespace, so that it goes with everything else.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt};
use roadstead_lab::check::Evidence;
use roadstead_lab::kind::LessonKind;
use roadstead_lab::language::{Language, Text};
use roadstead_lab::lesson::{self, Lesson};
use roadstead_typed::Typed;
use serde_json::json;

use crate::world;

/// Where everything of a lesson is.
const NAMESPACE: &str = "lab";
/// What tells it from a namespace of somebody else.
const MARK: &str = "roadstead.io/lab";
/// Where the reader is.
const PROGRESS: &str = "lab-progress";

/// Learn by doing: lessons about Services, with a check for every step.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// How to reach the cluster.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG", global = true)]
    kubeconfig: Option<PathBuf>,
    /// The language: en or zh [default: as LC_ALL, LC_MESSAGES or LANG say].
    #[arg(long, value_name = "LANGUAGE", value_parser = language, global = true)]
    lang: Option<Language>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the lessons.
    List,
    /// Begin a lesson. What is left of another one goes.
    Start {
        /// As `list` calls it.
        lesson: String,
    },
    /// Look whether the step is done, and say the next one.
    Check {
        /// The answer, where the step asks for one.
        answer: Option<String>,
    },
    /// Remove everything that belongs to the lesson.
    Reset,
}

fn language(text: &str) -> Result<Language, String> {
    Language::of(text).ok_or_else(|| format!("{text} is neither en nor zh"))
}

/// Carries out `roadstead lab`.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let locales = ["LC_ALL", "LC_MESSAGES", "LANG"].map(std::env::var);
    let locales: Vec<_> = locales.into_iter().flatten().collect();
    let language = args.lang;
    let language = language.unwrap_or_else(|| Language::chosen(locales.iter().map(String::as_str)));
    let teacher = Teacher { language };
    if let Command::List = args.command {
        return teacher.list();
    }
    let kubeconfig = args.kubeconfig.context("which cluster? see --kubeconfig")?;
    let room = Room { client: world::client(&kubeconfig).await?, teacher };
    match args.command {
        Command::List => Ok(()),
        Command::Start { lesson } => room.start(&lesson).await,
        Command::Check { answer } => room.check(answer).await,
        Command::Reset => room.reset().await,
    }
}

/// Who speaks.
#[derive(Clone, Copy)]
struct Teacher {
    language: Language,
}

impl Teacher {
    fn say(self, text: &Text) -> anyhow::Result<()> {
        Ok(writeln!(io::stdout(), "{}", text.in_language(self.language))?)
    }

    fn list(self) -> anyhow::Result<()> {
        for lesson in lesson::all() {
            let title = lesson.title.in_language(self.language);
            writeln!(io::stdout(), "{:<24}{title} ({})", lesson.name, lesson.document)?;
        }
        Ok(())
    }

    fn task(self, lesson: &Lesson, number: usize) -> anyhow::Result<()> {
        let Some(step) = lesson.steps.get(number) else { return Ok(()) };
        let mut out = io::stdout();
        let task = step.task.in_language(self.language);
        writeln!(out, "\n[{}/{}] {task}", number + 1, lesson.steps.len())?;
        for command in &step.commands {
            writeln!(out, "    {command}")?;
        }
        Ok(())
    }
}

/// The cluster, as far as lessons use it.
struct Room {
    client: Client,
    teacher: Teacher,
}

impl Room {
    fn of_kind(&self, kind: LessonKind) -> Api<DynamicObject> {
        let (group, name, plural) = kind.names();
        let api_version = if group.is_empty() { "v1".into() } else { format!("{group}/v1") };
        let resource = ApiResource {
            group: group.into(),
            version: "v1".into(),
            api_version,
            kind: name.into(),
            plural: plural.into(),
        };
        Api::namespaced_with(self.client.clone(), NAMESPACE, &resource)
    }

    async fn start(&self, name: &str) -> anyhow::Result<()> {
        let lesson = lesson::find(name);
        let names = || lesson::all().into_iter().map(|own| own.name).collect::<Vec<_>>().join(", ");
        let lesson =
            lesson.with_context(|| format!("there is no lesson {name}; there are {}", names()))?;
        self.clear().await?;
        let namespace = json!({"metadata": {"name": NAMESPACE, "labels": {MARK: lesson.name}}});
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let namespace = Namespace::from_value(&namespace).context("it is a namespace")?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        for object in &lesson.objects {
            let kind =
                object["kind"].as_str().and_then(LessonKind::of).context("a kind is known")?;
            let object = serde_json::from_value(object.clone()).context("it is an object")?;
            self.of_kind(kind).create(&PostParams::default(), &object).await?;
        }
        self.keep(&lesson, 0).await?;
        let title = lesson.title.in_language(self.teacher.language);
        writeln!(io::stdout(), "{title} ({})", lesson.document)?;
        self.teacher.task(&lesson, 0)
    }

    /// Notes where the reader is.
    async fn keep(&self, lesson: &Lesson, step: usize) -> anyhow::Result<()> {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), NAMESPACE);
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PROGRESS},
            "data": {"lesson": lesson.name, "step": step.to_string()}});
        let params = PatchParams::apply("roadstead-lab").force();
        maps.patch(PROGRESS, &params, &Patch::Apply(&map)).await?;
        Ok(())
    }

    /// The lesson that was begun, and the step.
    async fn place(&self) -> anyhow::Result<(Lesson, usize)> {
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), NAMESPACE);
        let map = maps.get_opt(PROGRESS).await?;
        let map = map.context("no lesson was begun: roadstead lab start LESSON")?;
        let text = |name: &str| map.data.as_ref().and_then(|data| data.get(name).cloned());
        let lesson = text("lesson").and_then(|name| lesson::find(&name));
        let step = text("step").and_then(|step| step.parse().ok());
        lesson.zip(step).context("the notes make no sense: roadstead lab reset")
    }

    async fn check(&self, answer: Option<String>) -> anyhow::Result<()> {
        let (lesson, number) = self.place().await?;
        let Some(step) = lesson.steps.get(number) else {
            return self.teacher.say(&done());
        };
        let mut world = Evidence { objects: Vec::new(), answer };
        for kind in step.check.kinds() {
            let list = self.of_kind(kind).list(&ListParams::default()).await?;
            for object in list.items {
                let value = serde_json::to_value(object).context("objects can be written")?;
                world.objects.push((kind, value));
            }
        }
        if let Some(missing) = step.check.missing(&world) {
            bail!("{}", missing.in_language(self.teacher.language));
        }
        self.keep(&lesson, number + 1).await?;
        writeln!(io::stdout(), "✓ {}", step.seen.in_language(self.teacher.language))?;
        if number + 1 == lesson.steps.len() {
            return self.teacher.say(&done());
        }
        self.teacher.task(&lesson, number + 1)
    }

    async fn reset(&self) -> anyhow::Result<()> {
        let begin = Instant::now();
        self.clear().await?;
        let took = begin.elapsed().as_millis();
        self.teacher.say(&Text::new(
            format!("Everything of the lesson is gone, after {took} ms."),
            format!("课程的一切都已清除，用时 {took} 毫秒。"),
        ))
    }

    /// Removes the namespace with everything in it, and waits until it is gone.
    async fn clear(&self) -> anyhow::Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let Some(namespace) = namespaces.get_opt(NAMESPACE).await? else { return Ok(()) };
        if !namespace.labels().contains_key(MARK) {
            bail!("the namespace {NAMESPACE} is somebody else's: it has no label {MARK}");
        }
        namespaces.delete(NAMESPACE, &DeleteParams::default()).await?;
        let pods = Api::<Pod>::namespaced(self.client.clone(), NAMESPACE);
        // Nobody waits for what a pod of a lesson may have to say.
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        pods.delete_collection(&now, &ListParams::default()).await?;
        let gone = async {
            while namespaces.get_opt(NAMESPACE).await?.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok::<_, kube::Error>(())
        };
        let patience = Duration::from_secs(60);
        tokio::time::timeout(patience, gone).await.context("the namespace does not go")??;
        Ok(())
    }
}

fn done() -> Text {
    Text::new(
        "That was the last step. Another lesson: roadstead lab list. Clean up: roadstead lab reset.",
        "这是最后一步。其他课程：roadstead lab list。清理：roadstead lab reset。",
    )
}
