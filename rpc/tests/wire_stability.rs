//! The services, messages, fields, numbers and types of `leasehold.v1` against the committed snapshot: what is released
//! never changes its meaning, what is removed stays reserved.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test crate")]

use prost::Message;
use prost_types::field_descriptor_proto::Label;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet, ServiceDescriptorProto,
};
use std::path::PathBuf;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/leasehold.v1.txt")
}

fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(leasehold_rpc::DESCRIPTORS).unwrap()
}

fn field_type(field: &FieldDescriptorProto) -> String {
    // Only messages and enumerations have a type name.
    let name = if field.type_name().is_empty() {
        field.r#type().as_str_name().trim_start_matches("TYPE_").to_lowercase()
    } else {
        field.type_name().trim_start_matches('.').to_owned()
    };
    match (field.label(), field.proto3_optional()) {
        (Label::Repeated, _) => format!("repeated {name}"),
        (_, true) => format!("optional {name}"),
        (_, false) => name,
    }
}

fn message(message: &DescriptorProto, lines: &mut Vec<String>) {
    let name = message.name();
    lines.push(format!("message {name}"));
    lines.extend(
        message.field.iter().map(|field| {
            format!("message {name} field {:>2} {} : {}", field.number(), field.name(), field_type(field))
        }),
    );
    lines.extend(
        message
            .reserved_range
            .iter()
            .map(|range| format!("message {name} reserved {} to {}", range.start(), range.end() - 1)),
    );
    lines.extend(message.reserved_name.iter().map(|reserved| format!("message {name} reserved \"{reserved}\"")));
}

fn enumeration(enumeration: &EnumDescriptorProto, lines: &mut Vec<String>) {
    let name = enumeration.name();
    lines
        .extend(enumeration.value.iter().map(|value| format!("enum {name} value {} {}", value.number(), value.name())));
}

fn service(service: &ServiceDescriptorProto, lines: &mut Vec<String>) {
    let name = service.name();
    lines.extend(service.method.iter().map(|method| {
        let stream = if method.server_streaming() { "stream " } else { "" };
        format!("service {name} {}({}) -> {stream}{}", method.name(), method.input_type(), method.output_type())
    }));
}

fn rendered() -> String {
    let mut lines = Vec::new();
    for file in descriptors().file {
        assert_eq!(file.package(), "leasehold.v1");
        file.message_type.iter().for_each(|each| message(each, &mut lines));
        file.enum_type.iter().for_each(|each| enumeration(each, &mut lines));
        file.service.iter().for_each(|each| service(each, &mut lines));
    }
    lines.sort();
    lines.join("\n") + "\n"
}

/// Set `LEASEHOLD_BLESS=1` to rewrite the file after a deliberate change of the protocol.
#[test]
fn the_descriptors_are_those_of_the_snapshot() {
    let now = rendered();
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        std::fs::write(path(), &now).unwrap();
    }
    let committed = std::fs::read_to_string(path()).unwrap();
    let gone: Vec<_> = committed.lines().filter(|line| !now.lines().any(|other| other == *line)).collect();
    assert!(gone.is_empty(), "an older peer relies on these:\n{}", gone.join("\n"));
    assert_eq!(committed, now, "the protocol grew; LEASEHOLD_BLESS=1 accepts that");
}

/// R4
#[test]
fn a_push_has_no_field_that_could_move_a_deadline_and_can_never_get_one() {
    for file in descriptors().file {
        for message in file.message_type.iter().filter(|m| ["AssignShardsRequest", "ShardSet"].contains(&m.name())) {
            let fields: Vec<_> = message.field.iter().map(FieldDescriptorProto::name).collect();
            let temporal = |name: &&str| ["ttl", "lease", "deadline", "expire"].iter().any(|word| name.contains(word));
            assert_eq!(fields.iter().find(|name| temporal(name)), None);
            for name in ["ttl_ms", "lease", "deadline"] {
                assert!(message.reserved_name.iter().any(|reserved| reserved == name), "{} {name}", message.name());
            }
        }
    }
}

/// R1
#[test]
fn a_lease_travels_as_a_signed_number_of_milliseconds_only() {
    let file = descriptors().file.into_iter().find(|file| file.name().ends_with("manager.proto")).unwrap();
    let grant = file.message_type.iter().find(|message| message.name() == "Grant").unwrap();
    let fields: Vec<_> = grant.field.iter().map(|field| format!("{} {}", field.name(), field_type(field))).collect();
    assert_eq!(fields, ["set leasehold.v1.ShardSet", "ttl_ms int64", "seq uint64"]);
}
