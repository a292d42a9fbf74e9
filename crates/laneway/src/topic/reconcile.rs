//! What to do when a declared topic meets the one that the broker already has.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::declaration::{Compression, Kind, Storage, Topic};
use super::name::TopicName;
use super::partitions::Partitions;
use super::retention::Retention;

/// Who may create and change topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Create what is missing, change nothing. What exists must be as declared.
    #[default]
    CreateOnly,
    /// Create what is missing, and change what may be changed to what is declared.
    CreateOrUpdate,
    /// Touch nothing. Everything must exist as declared: for production, where topics are managed.
    ValidateOnly,
    /// Touch nothing and compare nothing: topics are taken as they are.
    Skip,
}

/// Whether a topic may get more partitions.
///
/// More partitions move keys to other partitions: events of a key that are already stored may be
/// handled after newer ones. It takes someone who knows that this does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Growth {
    /// It keeps its number of partitions: more are a difference that is refused.
    #[default]
    Refused,
    /// Yes, and events of a key may overtake each other once.
    Forced,
}

/// What to do with a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// Create it as declared.
    Create,
    /// Change these things, and nothing else.
    Update(Vec<Difference>),
    /// Take it as it is.
    Keep,
}

/// One thing in which the declaration and the broker differ.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// What the topic is for.
    Kind {
        /// What the declaration says.
        declared: Kind,
        /// What the broker has.
        existing: Kind,
    },
    /// Where messages are kept.
    Storage {
        /// What the declaration says.
        declared: Storage,
        /// What the broker has.
        existing: Storage,
    },
    /// How many partitions there are.
    Partitions {
        /// What the declaration says.
        declared: Partitions,
        /// What the broker has.
        existing: Partitions,
    },
    /// How long messages are kept.
    Retention {
        /// What the declaration says.
        declared: Retention,
        /// What the broker has.
        existing: Retention,
    },
    /// How messages are compressed.
    Compression {
        /// What the declaration says.
        declared: Compression,
        /// What the broker has, if it says.
        existing: Option<Compression>,
    },
    /// How many copies there are.
    Replicas {
        /// What the declaration says.
        declared: u8,
        /// What the broker has, if it says.
        existing: Option<u8>,
    },
}

/// Why a declaration and the broker cannot be brought together.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReconcileError {
    /// It must exist and does not.
    #[error(
        "topic {0} does not exist, and the strategy validate_only creates none: create it, or use create_only"
    )]
    Missing(TopicName),
    /// It exists, and is something else.
    #[error("topic {name} is not what is declared: {}", listed(differences))]
    Mismatch {
        /// The topic.
        name: TopicName,
        /// In what they differ, both sides.
        differences: Vec<Difference>,
    },
}

fn listed(differences: &[Difference]) -> String {
    let sentences: Vec<String> = differences.iter().map(ToString::to_string).collect();
    sentences.join("; ")
}

/// Decides what to do with a topic that is declared. `existing` is the topic of that name as the
/// broker has it.
///
/// | | `CreateOnly` | `CreateOrUpdate` | `ValidateOnly` | `Skip` |
/// |---|---|---|---|---|
/// | missing | create | create | error | keep |
/// | as declared | keep | keep | keep | keep |
/// | retention, compression or replicas differ | error | update | error | keep |
/// | more partitions declared | error | error, update if forced | error | keep |
/// | fewer partitions declared | error | error | error | keep |
/// | kind or storage differ | error | error | error | keep |
///
/// Compression and replicas that the declaration leaves out are not compared.
///
/// # Errors
/// With both sides of everything that differs, and what to do about it.
pub fn reconcile(
    declared: &Topic,
    existing: Option<&Topic>,
    strategy: Strategy,
    growth: Growth,
) -> Result<Decision, ReconcileError> {
    let Some(existing) = existing else {
        return match strategy {
            Strategy::CreateOnly | Strategy::CreateOrUpdate => Ok(Decision::Create),
            Strategy::ValidateOnly => Err(ReconcileError::Missing(declared.name.clone())),
            Strategy::Skip => Ok(Decision::Keep),
        };
    };
    if strategy == Strategy::Skip {
        return Ok(Decision::Keep);
    }
    let differences = differences(declared, existing);
    if differences.is_empty() {
        return Ok(Decision::Keep);
    }
    let allowed = differences
        .iter()
        .all(|difference| difference.may_change(growth));
    if strategy == Strategy::CreateOrUpdate && allowed {
        return Ok(Decision::Update(differences));
    }
    Err(ReconcileError::Mismatch {
        name: declared.name.clone(),
        differences,
    })
}

fn differences(declared: &Topic, existing: &Topic) -> Vec<Difference> {
    let kind = Difference::Kind {
        declared: declared.kind,
        existing: existing.kind,
    };
    let storage = Difference::Storage {
        declared: declared.storage,
        existing: existing.storage,
    };
    let partitions = Difference::Partitions {
        declared: declared.partitions,
        existing: existing.partitions,
    };
    let retention = Difference::Retention {
        declared: declared.retention,
        existing: existing.retention,
    };
    let compression = declared
        .compression
        .map(|declared| Difference::Compression {
            declared,
            existing: existing.compression,
        });
    let replicas = declared.replicas.map(|declared| Difference::Replicas {
        declared,
        existing: existing.replicas,
    });
    [
        (declared.kind != existing.kind).then_some(kind),
        (declared.storage != existing.storage).then_some(storage),
        (declared.partitions != existing.partitions).then_some(partitions),
        (declared.retention != existing.retention).then_some(retention),
        compression.filter(|_| declared.compression != existing.compression),
        replicas.filter(|_| declared.replicas != existing.replicas),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl Topic {
    /// This topic, changed to what is declared in these things and in nothing else.
    #[must_use]
    pub fn updated(mut self, differences: &[Difference]) -> Self {
        for difference in differences {
            match *difference {
                Difference::Kind { declared, .. } => self.kind = declared,
                Difference::Storage { declared, .. } => self.storage = declared,
                Difference::Partitions { declared, .. } => self.partitions = declared,
                Difference::Retention { declared, .. } => self.retention = declared,
                Difference::Compression { declared, .. } => self.compression = Some(declared),
                Difference::Replicas { declared, .. } => self.replicas = Some(declared),
            }
        }
        self
    }
}

impl Difference {
    /// Whether a topic that has messages can be changed in this way.
    fn may_change(&self, growth: Growth) -> bool {
        match self {
            Self::Kind { .. } | Self::Storage { .. } => false,
            Self::Partitions { declared, existing } => {
                declared > existing && growth == Growth::Forced
            }
            Self::Retention { .. } | Self::Compression { .. } | Self::Replicas { .. } => true,
        }
    }

    /// What someone can do about it.
    fn fix(&self) -> &'static str {
        match self {
            Self::Kind { .. } | Self::Storage { .. } => "declare what exists, or use another name",
            Self::Partitions { declared, existing } if declared > existing => {
                "declare what exists, or force it where order across the change does not matter"
            }
            Self::Partitions { .. } => "declare what exists, partitions are never removed",
            Self::Retention { .. } | Self::Compression { .. } | Self::Replicas { .. } => {
                "declare what exists, or use the strategy create_or_update"
            }
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind { declared, existing } => sides(f, "kind", declared, existing),
            Self::Storage { declared, existing } => sides(f, "storage", declared, existing),
            Self::Partitions { declared, existing } => sides(f, "partitions", declared, existing),
            Self::Retention { declared, existing } => sides(f, "retention", declared, existing),
            Self::Compression { declared, existing } => {
                sides(f, "compression", declared, &known(*existing))
            }
            Self::Replicas { declared, existing } => {
                sides(f, "replicas", declared, &known(*existing))
            }
        }?;
        write!(f, " ({})", self.fix())
    }
}

fn sides(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    declared: &dyn fmt::Display,
    existing: &dyn fmt::Display,
) -> fmt::Result {
    write!(f, "{what} is declared {declared} and exists as {existing}")
}

fn known<T: fmt::Display>(existing: Option<T>) -> String {
    existing.map_or_else(
        || "the broker's default".to_owned(),
        |value| value.to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::TopicBuilder;
    use super::*;

    const STRATEGIES: [Strategy; 4] = [
        Strategy::CreateOnly,
        Strategy::CreateOrUpdate,
        Strategy::ValidateOnly,
        Strategy::Skip,
    ];

    fn topic(change: impl FnOnce(TopicBuilder) -> TopicBuilder) -> Topic {
        let builder = Topic::domain("orders")
            .partitions(8)
            .compression(Compression::Lz4)
            .replicas(3);
        change(builder).build().expect("a valid topic")
    }

    /// What each change costs.
    #[derive(Clone, Copy, PartialEq)]
    enum Cost {
        Nothing,
        Adjustable,
        Growth,
        Impossible,
    }

    fn changed() -> Vec<(Topic, Cost)> {
        let forever = Retention::FOREVER;
        let plain = Topic::plain("orders")
            .storage(Storage::File)
            .retention(topic(|t| t).retention())
            .partitions(8)
            .build()
            .expect("a valid topic");
        let undeclared = Topic::domain("orders").partitions(8).build();
        vec![
            (topic(|t| t), Cost::Nothing),
            (undeclared.expect("a valid topic"), Cost::Nothing),
            (topic(|t| t.retention(forever)), Cost::Adjustable),
            (
                topic(|t| t.compression(Compression::Zstd)),
                Cost::Adjustable,
            ),
            (topic(|t| t.replicas(1)), Cost::Adjustable),
            (
                topic(|t| t.replicas(1).retention(forever)),
                Cost::Adjustable,
            ),
            (topic(|t| t.partitions(9)), Cost::Growth),
            (topic(|t| t.partitions(9).replicas(1)), Cost::Growth),
            (topic(|t| t.partitions(7)), Cost::Impossible),
            (topic(|t| t.storage(Storage::Memory)), Cost::Impossible),
            (plain, Cost::Impossible),
            (
                topic(|t| t.storage(Storage::Memory).partitions(9)),
                Cost::Impossible,
            ),
        ]
    }

    #[derive(Debug, PartialEq)]
    enum Outcome {
        Create,
        Update,
        Keep,
        Error,
    }

    fn outcome(result: &Result<Decision, ReconcileError>) -> Outcome {
        match result {
            Ok(Decision::Create) => Outcome::Create,
            Ok(Decision::Update(_)) => Outcome::Update,
            Ok(Decision::Keep) => Outcome::Keep,
            Err(_) => Outcome::Error,
        }
    }

    #[test]
    fn every_combination_is_decided_as_documented() {
        let existing = topic(|t| t);
        for strategy in STRATEGIES {
            for growth in [Growth::Refused, Growth::Forced] {
                for (declared, cost) in changed() {
                    let expected = match (strategy, cost) {
                        (Strategy::Skip, _) | (_, Cost::Nothing) => Outcome::Keep,
                        (Strategy::CreateOrUpdate, Cost::Adjustable) => Outcome::Update,
                        (Strategy::CreateOrUpdate, Cost::Growth) if growth == Growth::Forced => {
                            Outcome::Update
                        }
                        _ => Outcome::Error,
                    };
                    let result = reconcile(&declared, Some(&existing), strategy, growth);
                    assert_eq!(
                        outcome(&result),
                        expected,
                        "{strategy:?} {growth:?} {declared:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_missing_topic_is_created_required_or_left_alone() {
        let declared = topic(|t| t);
        for growth in [Growth::Refused, Growth::Forced] {
            for (strategy, expected) in STRATEGIES.into_iter().zip([
                Outcome::Create,
                Outcome::Create,
                Outcome::Error,
                Outcome::Keep,
            ]) {
                let result = reconcile(&declared, None, strategy, growth);
                assert_eq!(outcome(&result), expected, "{strategy:?}");
            }
        }
    }

    #[test]
    fn an_update_lists_exactly_what_changes() {
        let declared = topic(|t| t.replicas(5).retention(Retention::FOREVER.count(10)));
        let existing = topic(|t| t);
        let decision = reconcile(
            &declared,
            Some(&existing),
            Strategy::CreateOrUpdate,
            Growth::Refused,
        );
        assert_eq!(
            decision,
            Ok(Decision::Update(vec![
                Difference::Retention {
                    declared: declared.retention(),
                    existing: existing.retention(),
                },
                Difference::Replicas {
                    declared: 5,
                    existing: Some(3),
                },
            ]))
        );
    }

    #[test]
    fn a_mismatch_says_both_sides_and_the_fix() {
        let existing = Topic::plain("orders").partitions(32).build();
        let error = reconcile(
            &topic(|t| t),
            Some(&existing.expect("valid")),
            Strategy::CreateOrUpdate,
            Growth::Forced,
        )
        .expect_err("a plain topic");
        assert_eq!(
            error.to_string(),
            "topic orders is not what is declared: \
             kind is declared domain and exists as plain \
             (declare what exists, or use another name); \
             storage is declared file and exists as memory \
             (declare what exists, or use another name); \
             partitions is declared 8 and exists as 32 \
             (declare what exists, partitions are never removed); \
             retention is declared 7d and exists as 1h, 256MiB \
             (declare what exists, or use the strategy create_or_update); \
             compression is declared lz4 and exists as the broker's default \
             (declare what exists, or use the strategy create_or_update); \
             replicas is declared 3 and exists as the broker's default \
             (declare what exists, or use the strategy create_or_update)"
        );
    }

    #[test]
    fn growth_says_what_it_would_cost() {
        let error = reconcile(
            &topic(|t| t.partitions(9)),
            Some(&topic(|t| t)),
            Strategy::CreateOrUpdate,
            Growth::Refused,
        )
        .expect_err("not forced");
        assert_eq!(
            error.to_string(),
            "topic orders is not what is declared: partitions is declared 9 and exists as 8 \
             (declare what exists, or force it where order across the change does not matter)"
        );
    }
}
