//! How the parts of an object are typed, whoever describes it: the built-in schema, a
//! CustomResourceDefinition, or nobody.
//!
//! Server-side apply asks the same few questions everywhere: is this merged or replaced as a
//! whole, what are its fields, what tells the elements of a list apart.

use roadstead_schema::structural::{Additional, Primitive, Structural};
use roadstead_schema::types::{Field, ListKind, Schema, Type, TypeId};
use serde_json::{Map, Value};

use super::element::Element;

/// Where in a schema a value is.
#[derive(Clone, Copy, Debug)]
pub enum Typing<'a> {
    /// No schema: objects are maps, lists are replaced as a whole.
    Free,
    /// A place in the built-in schema.
    Known {
        /// All types.
        schema: &'a Schema,
        /// The type of the value.
        ty: &'a Type,
        /// The field that holds it, which may say how lists and maps are merged.
        field: Option<&'a Field>,
    },
    /// A place in the schema of a CustomResourceDefinition.
    Custom {
        /// What is there.
        schema: &'a Structural,
        /// Whether it is a whole object, so that there is metadata in it.
        is_resource: bool,
    },
}

const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// What kind of value belongs to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape<'a> {
    /// Whatever it is.
    Free,
    /// One value without parts.
    Scalar(Scalar),
    /// An object with known fields.
    Fields,
    /// An object with free names.
    Map,
    /// A list, and the fields that are the key of its elements.
    List(ListKind, &'a [String]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Text,
    Number,
    Boolean,
    Any,
}

/// A value as its typing has it taken apart.
pub(super) enum Parts<'v> {
    /// It has none: it is replaced as a whole.
    Whole,
    /// Fields or entries.
    Object(&'v Map<String, Value>),
    /// Elements that can be told apart.
    List(&'v [Value]),
}

impl Parts<'_> {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Whole => false,
            Self::Object(fields) => fields.is_empty(),
            Self::List(items) => items.is_empty(),
        }
    }
}

/// A part of an object.
pub(super) struct Child<'a> {
    pub(super) typing: Typing<'a>,
    /// Whether the schema names the field: as opposed to the entries of a map, such a field is
    /// owned by itself only if there is nothing in it.
    pub(super) named: bool,
}

impl Child<'_> {
    const FREE: Self = Self { typing: Typing::Free, named: false };
}

/// Objects that are there even when they are empty, because they are no pointers in Go. A first
/// field in one of them does not make the object itself new.
const ALWAYS_THERE: [&str; 9] = [
    "metadata",
    "spec",
    "status",
    "template",
    "jobTemplate",
    "strategy",
    "updateStrategy",
    "loadBalancer",
    "resources",
];

impl<'a> Typing<'a> {
    /// The objects of a built-in type.
    pub fn known(schema: &'a Schema, id: TypeId) -> Self {
        Self::Known { schema, ty: &schema.get(id).ty, field: None }
    }

    /// The objects of a CustomResourceDefinition.
    pub fn custom(schema: &'a Structural) -> Self {
        Self::Custom { schema, is_resource: true }
    }

    fn part(schema: &'a Structural) -> Self {
        Self::Custom { schema, is_resource: schema.embedded }
    }

    pub(super) fn shape(self) -> Shape<'a> {
        match self {
            Self::Free => Shape::Free,
            Self::Known { schema, ty, field } => known_shape(schema, ty, field),
            Self::Custom { schema, .. } => custom_shape(schema),
        }
    }

    /// Whether the value is replaced as a whole although it has parts.
    fn is_atomic(self) -> bool {
        match self {
            Self::Free => false,
            Self::Custom { schema, .. } => schema.atomic,
            Self::Known { schema, ty, field } => {
                let by_definition = match schema.resolve(ty) {
                    Type::Object(id) => schema.get(*id).atomic,
                    _ => false,
                };
                field.is_some_and(|field| field.atomic)
                    || by_definition && !field.is_some_and(|field| field.granular)
            }
        }
    }

    /// The parts in which the value is merged.
    pub(super) fn parts<'v>(self, value: &'v Value) -> Parts<'v> {
        match (value, self.shape()) {
            (Value::Object(fields), Shape::Free) => Parts::Object(fields),
            (Value::Object(fields), Shape::Fields | Shape::Map) if !self.is_atomic() => {
                Parts::Object(fields)
            }
            (Value::Array(items), Shape::List(ListKind::Set | ListKind::Map, _)) => {
                Parts::List(items)
            }
            _ => Parts::Whole,
        }
    }

    /// The part behind a name; `None` if the schema has no such field.
    pub(super) fn declared(self, name: &str) -> Option<Child<'a>> {
        match self {
            Self::Free => Some(Child::FREE),
            Self::Custom { schema, is_resource } => custom_child(schema, is_resource, name),
            Self::Known { schema, ty, .. } => match schema.resolve(ty) {
                Type::Object(id) => schema.get(*id).fields.get(name).map(|field| {
                    let typing = Self::Known { schema, ty: &field.ty, field: Some(field) };
                    Child { typing, named: true }
                }),
                Type::Map(ty) => {
                    let typing = Self::Known { schema, ty, field: None };
                    Some(Child { typing, named: false })
                }
                _ => Some(Child::FREE),
            },
        }
    }

    /// The part behind a name, typed freely if the schema has no such field.
    pub(super) fn child(self, name: &str) -> Child<'a> {
        self.declared(name).unwrap_or(Child::FREE)
    }

    /// Whether the object or list behind a name is there even if nothing is in it.
    pub(super) fn is_always_there(self, name: &str) -> bool {
        let Self::Known { schema, ty, .. } = self else { return false };
        let is_required = || match schema.resolve(ty) {
            Type::Object(id) => schema.get(*id).fields.get(name).is_some_and(|f| f.required),
            _ => false,
        };
        ALWAYS_THERE.contains(&name) || is_required()
    }

    /// The elements of a list.
    pub(super) fn items(self) -> Self {
        match self {
            Self::Known { schema, ty, .. } => match schema.resolve(ty) {
                Type::List(ty) => Self::Known { schema, ty, field: None },
                _ => Self::Free,
            },
            Self::Custom { schema, .. } => schema.items.as_deref().map_or(Self::Free, Self::part),
            Self::Free => Self::Free,
        }
    }

    /// What tells an element of the list from the others; an error if nothing does.
    pub(super) fn element(self, item: &Value) -> Result<Element, String> {
        match (self.shape(), item) {
            (Shape::List(ListKind::Map, keys), Value::Object(fields)) => self.key(keys, fields),
            (Shape::List(ListKind::Map, _), Value::Null) => {
                Err("associative list with keys may not have a null element".into())
            }
            (Shape::List(ListKind::Map, _), _) => {
                Err("associative list with keys may not have non-map elements".into())
            }
            (Shape::List(ListKind::Set, _), Value::Null) => {
                Err("associative list without keys has an element that's an explicit null".into())
            }
            (Shape::List(ListKind::Set, _), Value::Object(_)) => {
                Err("associative list without keys has an element that's a map type".into())
            }
            _ => Ok(Element::value(item)),
        }
    }

    /// As `element`, by position where nothing else tells elements apart.
    pub(super) fn element_at(self, index: usize, item: &Value) -> Element {
        self.element(item).unwrap_or(Element::Index(index))
    }

    fn key(self, keys: &[String], fields: &Map<String, Value>) -> Result<Element, String> {
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let value = fields.get(key).or_else(|| self.items().default_of(key));
            found.push((key.as_str(), value.ok_or_else(|| missing_key(key))?));
        }
        Ok(Element::key(found.into_iter()))
    }

    /// Drops nulls where they mean that a field is absent. In custom resources they may be values.
    pub(super) fn drop_nulls(self, value: &mut Value) {
        match value {
            _ if self.shape() == Shape::Free => {}
            Value::Object(fields) => fields.retain(|name, value| {
                self.child(name).typing.drop_nulls(value);
                !value.is_null() || matches!(self, Self::Custom { .. })
            }),
            Value::Array(items) => items.iter_mut().for_each(|item| self.items().drop_nulls(item)),
            _ => {}
        }
    }

    /// What a field is when it is left out.
    fn default_of(self, name: &str) -> Option<&'a Value> {
        match self.declared(name)?.typing {
            Self::Known { field, .. } => field?.default.as_ref(),
            Self::Custom { schema, .. } => schema.default.as_ref(),
            Self::Free => None,
        }
    }
}

fn known_shape<'a>(schema: &'a Schema, ty: &'a Type, field: Option<&'a Field>) -> Shape<'a> {
    match schema.resolve(ty) {
        Type::Any => Shape::Free,
        Type::String | Type::Bytes | Type::Time => Shape::Scalar(Scalar::Text),
        Type::Boolean => Shape::Scalar(Scalar::Boolean),
        Type::Int32 | Type::Int64 | Type::Number => Shape::Scalar(Scalar::Number),
        Type::IntOrString => Shape::Scalar(Scalar::Any),
        Type::Object(_) => Shape::Fields,
        Type::Map(_) => Shape::Map,
        Type::List(_) => {
            let kind = field.and_then(|field| field.list).unwrap_or(ListKind::Atomic);
            Shape::List(kind, field.map_or(&[], |field| &field.keys))
        }
    }
}

fn custom_shape(schema: &Structural) -> Shape<'_> {
    if schema.int_or_string {
        return Shape::Scalar(Scalar::Any);
    }
    match schema.ty {
        None => Shape::Free,
        Some(Primitive::String) => Shape::Scalar(Scalar::Text),
        Some(Primitive::Boolean) => Shape::Scalar(Scalar::Boolean),
        Some(Primitive::Integer | Primitive::Number) => Shape::Scalar(Scalar::Number),
        Some(Primitive::Array) => {
            Shape::List(schema.list.unwrap_or(ListKind::Atomic), &schema.keys)
        }
        Some(Primitive::Object) => match schema.additional {
            Additional::None => Shape::Fields,
            Additional::Any | Additional::Each(_) => Shape::Map,
        },
    }
}

fn custom_child<'a>(schema: &'a Structural, is_resource: bool, name: &str) -> Option<Child<'a>> {
    if is_resource && ["apiVersion", "kind", "metadata"].contains(&name) {
        let known = Schema::kubernetes();
        let metadata = known.named(METADATA).filter(|_| name == "metadata");
        let typing = metadata.map_or(Typing::Free, |id| Typing::known(known, id));
        return Some(Child { typing, named: true });
    }
    match (schema.properties.get(name), &schema.additional) {
        (Some(property), _) => Some(Child { typing: Typing::part(property), named: true }),
        (None, Additional::Each(each)) => Some(Child { typing: Typing::part(each), named: false }),
        // Nothing describes what is here.
        (None, _) if schema.keeps_others() || schema.ty.is_none() => Some(Child::FREE),
        (None, _) => None,
    }
}

fn missing_key(key: &str) -> String {
    format!(
        "associative list with keys has an element that omits key field {key:?} (and doesn't have \
         default value)"
    )
}
