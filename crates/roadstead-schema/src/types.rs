//! The types of all API objects: fields, list kinds and merge keys.
//!
//! One table (data/schema-facts.json) drives decoding, strict validation, strategic merge and the
//! OpenAPI documents, so they cannot disagree.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

const FACTS: &str = include_str!("../data/schema-facts.json");

/// Which definition of a schema, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeId(usize);

/// What a value may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// Text.
    String,
    /// Text in base64.
    Bytes,
    /// A moment in RFC 3339.
    Time,
    /// True or false.
    Boolean,
    /// A whole number of 32 bits.
    Int32,
    /// A whole number of 64 bits.
    Int64,
    /// Any number.
    Number,
    /// A number or a text, as ports and quantities are.
    IntOrString,
    /// Any JSON.
    Any,
    /// An object with known fields.
    Object(TypeId),
    /// Several values of one type.
    List(Box<Type>),
    /// Values of one type by free names.
    Map(Box<Type>),
}

/// How elements of a list are told apart when two versions of it are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ListKind {
    /// Not at all: the list is replaced as a whole.
    Atomic,
    /// By value.
    Set,
    /// By key fields.
    Map,
}

/// A field of a definition.
#[derive(Debug)]
pub struct Field {
    /// What the field holds.
    pub ty: Type,
    /// Whether it must be present.
    pub required: bool,
    /// What the documents say it is when absent.
    pub default: Option<Value>,
    /// For lists: how server-side apply merges them.
    pub list: Option<ListKind>,
    /// For lists merged by key: the fields that make up the key.
    pub keys: Vec<String>,
    /// For lists: the one field by which strategic merge tells elements apart.
    pub merge_key: Option<String>,
    /// Whether strategic merge merges the list instead of replacing it.
    pub merges: bool,
    /// Whether strategic merge drops fields that the patch does not retain.
    pub retain_keys: bool,
    /// Whether the map (or object) is replaced as a whole by server-side apply.
    pub atomic: bool,
    /// Whether the object is merged field by field although its definition is atomic.
    pub granular: bool,
}

/// A named type with fields.
#[derive(Debug)]
pub struct Definition {
    /// Such as `io.k8s.api.core.v1.Service`.
    pub name: String,
    /// Empty when the definition is not an object with known fields.
    pub fields: BTreeMap<String, Field>,
    /// Group, version and kind, if objects of this type are served by themselves.
    pub gvk: Option<(String, String, String)>,
    /// What a reference to this definition means.
    pub ty: Type,
    /// Whether server-side apply replaces such an object as a whole, unless the field that holds
    /// it says otherwise.
    pub atomic: bool,
}

/// All definitions.
#[derive(Debug)]
pub struct Schema {
    definitions: Vec<Definition>,
    by_name: BTreeMap<String, TypeId>,
    by_gvk: BTreeMap<(String, String, String), TypeId>,
}

impl Schema {
    /// The types of Kubernetes.
    pub fn kubernetes() -> &'static Schema {
        static SCHEMA: OnceLock<Schema> = OnceLock::new();
        SCHEMA.get_or_init(|| Schema::read(FACTS).expect("the built-in schema is readable"))
    }

    fn read(text: &str) -> Result<Self, serde_json::Error> {
        let raw: BTreeMap<String, RawDefinition> = serde_json::from_str(text)?;
        let ids = raw.keys().enumerate().map(|(index, name)| (name.clone(), TypeId(index)));
        let by_name: BTreeMap<_, _> = ids.collect();
        let mut by_gvk = BTreeMap::new();
        let mut definitions = Vec::with_capacity(raw.len());
        for (name, raw) in raw {
            let id = by_name[&name];
            let gvk = raw.gvk.map(|gvk| (gvk.group, gvk.version, gvk.kind));
            if let Some(gvk) = &gvk {
                by_gvk.insert(gvk.clone(), id);
            }
            let ty = raw.ty.map_or(Type::Object(id), |text| read_type(&text, &by_name));
            let fields = raw.fields.into_iter();
            let fields = fields.map(|(name, field)| (name, field.build(&by_name))).collect();
            let atomic = raw.map.as_deref() == Some("atomic");
            definitions.push(Definition { name, fields, gvk, ty, atomic });
        }
        Ok(Self { definitions, by_name, by_gvk })
    }

    /// The definition behind an id.
    pub fn get(&self, id: TypeId) -> &Definition {
        &self.definitions[id.0]
    }

    /// The type of that name.
    pub fn named(&self, name: &str) -> Option<TypeId> {
        self.by_name.get(name).copied()
    }

    /// The type of the objects of a kind.
    pub fn of_kind(&self, group: &str, version: &str, kind: &str) -> Option<TypeId> {
        self.by_gvk.get(&(group.to_owned(), version.to_owned(), kind.to_owned())).copied()
    }

    /// What a type is, after following references to simple types.
    pub fn resolve<'a>(&'a self, ty: &'a Type) -> &'a Type {
        match ty {
            Type::Object(id) => &self.get(*id).ty,
            other => other,
        }
    }
}

#[derive(Deserialize)]
struct RawDefinition {
    #[serde(default)]
    fields: BTreeMap<String, RawField>,
    gvk: Option<RawGvk>,
    #[serde(rename = "type")]
    ty: Option<String>,
    map: Option<String>,
}

#[derive(Deserialize)]
struct RawGvk {
    group: String,
    version: String,
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawField {
    #[serde(rename = "type")]
    ty: String,
    #[serde(default)]
    required: bool,
    default: Option<Value>,
    list: Option<ListKind>,
    #[serde(default)]
    keys: Vec<String>,
    merge_key: Option<String>,
    #[serde(default)]
    patch_strategy: String,
    map: Option<String>,
}

impl RawField {
    fn build(self, by_name: &BTreeMap<String, TypeId>) -> Field {
        let strategy = |name| self.patch_strategy.split(',').any(|word| word == name);
        Field {
            ty: read_type(&self.ty, by_name),
            merges: strategy("merge"),
            retain_keys: strategy("retainKeys"),
            required: self.required,
            default: self.default,
            list: self.list,
            keys: self.keys,
            merge_key: self.merge_key,
            atomic: self.map.as_deref() == Some("atomic"),
            granular: self.map.as_deref() == Some("granular"),
        }
    }
}

/// `[T]` is a list, `{T}` a map, `io.…` a reference.
fn read_type(text: &str, by_name: &BTreeMap<String, TypeId>) -> Type {
    let inner = |open, close| text.strip_prefix(open).and_then(|t| t.strip_suffix(close));
    if let Some(element) = inner('[', ']') {
        return Type::List(Box::new(read_type(element, by_name)));
    }
    if let Some(element) = inner('{', '}') {
        return Type::Map(Box::new(read_type(element, by_name)));
    }
    match text {
        "string" => Type::String,
        "string:byte" => Type::Bytes,
        "string:date-time" => Type::Time,
        "boolean" => Type::Boolean,
        "integer:int32" => Type::Int32,
        "integer:int64" => Type::Int64,
        "number:double" => Type::Number,
        "int-or-string" => Type::IntOrString,
        name => by_name.get(name).map_or(Type::Any, |&id| Type::Object(id)),
    }
}

#[test]
fn the_schema_knows_services() {
    let schema = Schema::kubernetes();
    let service = schema.get(schema.of_kind("", "v1", "Service").unwrap());
    let Type::Object(spec) = &service.fields["spec"].ty else { panic!("spec is an object") };
    let spec = schema.get(*spec);
    assert_eq!(spec.name, "io.k8s.api.core.v1.ServiceSpec");
    let ports = &spec.fields["ports"];
    assert_eq!((ports.merge_key.as_deref(), ports.merges), (Some("port"), true));
    assert_eq!(ports.keys, ["port", "protocol"]);
    assert!(spec.fields["selector"].atomic);
    assert!(schema.get(schema.named("io.k8s.api.core.v1.ObjectReference").unwrap()).atomic);
    let volume = schema.get(schema.named("io.k8s.api.core.v1.PersistentVolumeSpec").unwrap());
    assert!(volume.fields["claimRef"].granular);
}
