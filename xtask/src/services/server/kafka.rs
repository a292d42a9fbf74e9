//! Apache Kafka in `KRaft` mode; every node is broker and controller.

use std::path::Path;
use std::thread;

use anyhow::{Context, anyhow};

use super::Built;
use crate::services::files;
use crate::services::install::{self, java::Java, maven};
use crate::services::place;
use crate::services::ports;
use crate::services::site::Site;

const VERSION: &str = "4.3.1";
const POM: &str = include_str!("../../../assets/kafka-pom.xml");

/// Any 16 bytes in URL-safe base64 will do; the cluster lives as long as its folder.
const CLUSTER: &str = "TGFuZXdheVRlc3RzMDAwMQ";

pub(super) fn build(site: &Site<'_>) -> anyhow::Result<Built> {
    let java = Java::find(site.line)?;
    let jars = place::tools().join(format!("kafka-{VERSION}"));
    maven::fetch(site.line, &java, POM, &[("kafka.version", VERSION)], &jars)?;
    let class_path = jars.join("*");

    site.line.say("starting");
    let nodes = Node::plan(site)?;
    let format = |node: &Node| {
        let folder = site.folder(&node.name)?;
        files::write(
            &folder.join("server.properties"),
            node.properties(&nodes, &folder),
        )?;
        let mut storage = java.command(&class_path);
        // It only lives for a moment, too short for the better compiler to pay.
        storage
            .args([
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "kafka.tools.StorageTool",
            ])
            .args(["format", "--cluster-id", CLUSTER, "--config"])
            .arg(folder.join("server.properties"));
        install::output(&mut storage).context("formatting the storage")?;
        anyhow::Ok(folder)
    };
    let format = &format;
    let folders = thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .iter()
            .map(|node| scope.spawn(move || format(node)))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(anyhow!("formatting panicked")))
            })
            .collect::<anyhow::Result<Vec<_>>>()
    })?;

    for (node, folder) in nodes.iter().zip(folders) {
        let mut broker = java.command(&class_path);
        broker
            .current_dir(&folder)
            .args([
                "-Xms256m",
                "-Xmx512m",
                "-XX:+UseSerialGC",
                "-XX:+ExitOnOutOfMemoryError",
            ])
            .args(["-Dorg.slf4j.simpleLogger.showDateTime=true", "kafka.Kafka"])
            .arg(folder.join("server.properties"));
        site.start(&node.name, &mut broker)?;
    }
    let addresses: Vec<String> = nodes
        .iter()
        .map(|node| format!("127.0.0.1:{}", node.port))
        .collect();
    let settings = "-Xms128m -Xmx384m -XX:+UseSerialGC -XX:TieredStopAtLevel=1";
    let launcher = java.launcher(&jars.join("kafka"), &class_path, settings)?;
    Ok(Built {
        address: addresses.join(","),
        version: Some(VERSION.to_owned()),
        program: Some(launcher),
    })
}

struct Node {
    name: String,
    id: usize,
    port: u16,
    controller_port: u16,
}

impl Node {
    fn plan(site: &Site<'_>) -> anyhow::Result<Vec<Self>> {
        let names = site.nodes();
        let ports = ports::free(2 * names.len())?;
        let pairs = ports.as_chunks::<2>().0;
        Ok(names
            .into_iter()
            .zip(pairs)
            .enumerate()
            .map(|(index, (name, &[port, controller_port]))| Self {
                name,
                id: index + 1,
                port,
                controller_port,
            })
            .collect())
    }

    fn properties(&self, all: &[Self], folder: &Path) -> String {
        let voters: Vec<String> = all
            .iter()
            .map(|node| format!("{}@127.0.0.1:{}", node.id, node.controller_port))
            .collect();
        let copies = all.len();
        // Of three copies two must have a write before it is acknowledged.
        let in_sync = copies.div_ceil(2);
        format!(
            "\
process.roles=broker,controller
node.id={id}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
log.dirs={data}

default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}

# Tests have few groups and do not want to wait for their first one.
offsets.topic.num.partitions=8
transaction.state.log.num.partitions=8
share.coordinator.state.topic.num.partitions=8
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000

# Fits into a small heap.
log.cleaner.dedupe.buffer.size=8388608
",
            id = self.id,
            port = self.port,
            controller_port = self.controller_port,
            voters = voters.join(","),
            data = folder.join("log").display(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> Vec<Node> {
        let node = |id: usize| Node {
            name: format!("kafka-{id}"),
            id,
            port: 100,
            controller_port: 200,
        };
        (1..=count).map(node).collect()
    }

    #[test]
    fn one_node_keeps_one_copy() {
        let nodes = nodes(1);
        let text = nodes[0].properties(&nodes, Path::new("folder"));
        assert!(text.contains("\nmin.insync.replicas=1\n"), "{text}");
        assert!(
            text.contains("\noffsets.topic.replication.factor=1\n"),
            "{text}"
        );
    }

    #[test]
    fn three_nodes_keep_three_copies_and_vote() {
        let nodes = nodes(3);
        let text = nodes[1].properties(&nodes, Path::new("folder"));
        assert!(text.contains("\nnode.id=2\n"), "{text}");
        assert!(text.contains("\nmin.insync.replicas=2\n"), "{text}");
        let voters = "1@127.0.0.1:200,2@127.0.0.1:200,3@127.0.0.1:200";
        assert!(
            text.contains(&format!("\ncontroller.quorum.voters={voters}\n")),
            "{text}"
        );
    }
}
