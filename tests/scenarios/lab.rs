//! The lessons, played: nothing done and wrong answers are refused, the solutions are taken.

use std::process::Output;
use std::time::{Duration, Instant};

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(30);

/// A reader with a shell.
struct Reader {
    before: String,
    /// Where kubectl and roadstead are found by their names.
    _programs: tempfile::TempDir,
}

impl Reader {
    fn new(roadstead: &Roadstead) -> Self {
        let programs = tempfile::tempdir().unwrap();
        let bin = programs.path().display();
        let binary = env!("CARGO_BIN_EXE_roadstead");
        // Where it is, for the scripts have its name.
        let kubectl = run(&format!("command -v {}", Kubectl::program()));
        for (name, program) in [("kubectl", kubectl), ("roadstead", binary.into())] {
            let script = format!("#!/bin/sh\nexec {program} \"$@\"\n");
            std::fs::write(programs.path().join(name), script).unwrap();
        }
        run(&format!("chmod +x {bin}/*"));
        let kubeconfig = roadstead.kubeconfig();
        let before = format!(
            "export KUBECONFIG={} PATH={bin}:$PATH HOME={bin} LC_ALL=C; ",
            kubeconfig.display()
        );
        Self { before, _programs: programs }
    }

    fn types(&self, command: &str) -> Output {
        try_run(&format!("{}{command}", self.before))
    }

    fn sees(&self, command: &str) -> String {
        let output = self.types(command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn is_refused(&self, command: &str) -> String {
        let output = self.types(command);
        assert_eq!(output.status.code(), Some(1), "{command}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn lessons_are_played_with_right_and_wrong_answers() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up();
        let reader = Reader::new(&roadstead);
        let listed = reader.sees("roadstead lab list");
        assert_eq!(listed.lines().count(), 5, "{listed}");
        let chinese = reader.sees("LC_ALL=zh_CN.UTF-8 roadstead lab list");
        assert!(chinese.contains("端点") && !listed.contains("端点"), "{chinese}");
        assert!(reader.is_refused("roadstead lab check").contains("no lesson was begun"));
        let wrong = reader.is_refused("roadstead lab start nothing");
        assert!(wrong.contains("there are service-and-endpoints, slices"), "{wrong}");
        for lesson in roadstead_lab::lesson::all() {
            let name = &lesson.name;
            let begun = reader.sees(&format!("roadstead lab start {name} --lang zh"));
            assert!(begun.contains(&format!("[1/{}]", lesson.steps.len())), "{begun}");
            for (number, step) in lesson.steps.iter().enumerate() {
                let place = format!("{name}, step {}", number + 1);
                let asks = step.check.wants_answer();
                reader.is_refused("roadstead lab check");
                let answer = if asks {
                    let said = reader.is_refused("roadstead lab check 'something else'");
                    assert!(!said.is_empty(), "{place}");
                    format!("\"{}\"", step.solution)
                } else {
                    reader.sees(&step.solution);
                    String::new()
                };
                let check = format!("roadstead lab check {answer}");
                let ask = || reader.types(&check);
                let taken = eventually(&place, PATIENCE, ask, |output| output.status.success());
                let said = String::from_utf8(taken.stdout).unwrap();
                assert!(said.starts_with("✓ "), "{place}: {said}");
            }
            assert!(reader.sees("roadstead lab check").contains("the last step"));
        }
        let begin = Instant::now();
        let said = reader.sees("roadstead lab reset");
        let took = begin.elapsed();
        eprintln!("reset: {took:?}, {said}");
        // Under a second where nothing else runs, with the program that starts for it.
        assert!(took < Duration::from_secs(3), "{took:?}");
        let kubectl = roadstead.kubectl();
        assert!(kubectl.fails("get namespace lab").contains("not found"));
        // A namespace of somebody else is left alone.
        kubectl.run("create namespace lab");
        let said = reader.is_refused("roadstead lab start slices");
        assert!(said.contains("somebody else's"), "{said}");
        kubectl.run("get namespace lab");
    });
}
