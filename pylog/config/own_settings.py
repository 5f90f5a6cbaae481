"""The settings of a broker that are pylog's own, one row each.

Owns: the rows of settings that Kafka does not have.
Invariants: names are unique and sorted, and none is a name of Kafka's.
"""

# The flush: Kafka's answer means page cache only, and a power cut then loses
# acknowledged records. The walk and the size limit: bench/ shows what each costs, and
# `python -m bench.fanout` what gathering saves and how much later it makes an answer.
# control.*: Kafka bounds the frame alone (socket.request.max.bytes), and there a request of 260 KB
# can make an answer of 7.9 GB. What is reasonable stays below: a million partitions, about what one
# cluster of Kafka's holds, are 17 MB asked for by ListOffsets and 4 MB by OffsetFetch, and at most
# 40 MB answered; the settings of 10,000 topics with their documentation are 38 MB.
# quorum.etcd.*: what Kafka's controllers do among themselves, several of ours leave to etcd. Ports
# differ where machines are shared, endpoints, prefix, protocol and login where etcd is.
# quorum.zookeeper.*: for sites with a ZooKeeper; the names after ssl are those of Kafka 3's
# zookeeper.ssl.*.
OWN = (
    ("audit.log.data.enable", "boolean", False, "", "low", "", "live",
     "Allowed reads and writes are in the audit log too; refusals and changes always are."),
    ("audit.log.file", "string", "", "", "medium", "", "live",
     "File of the audit log, a JSON object a line; empty: there is none."),
    ("audit.log.topic", "string", "", "", "low", "", "live",
     "Topic that gets the audit log's lines as records, made when it is needed; empty: none does."),
    ("consume.flushed.records.only", "boolean", False, "", "medium", "cluster", "live",
     "Consumers read a record only after it is on the leader's disk, also with one replica."),
    ("control.request.bytes.max", "int", 33554432, "65536..", "medium", "", "live",
     "Longest request other than Produce and Fetch; a longer one closes its connection."),
    ("control.request.elements.max", "int", 1048576, "1000..", "medium", "", "live",
     "Most partitions, groups or resources that one request may name."),
    ("control.response.bytes.max", "int", 67108864, "65536..", "medium", "", "live",
     "Longest answer other than Fetch's; where one would be longer the connection is closed."),
    ("decompressed.batch.bytes.max", "long", 104857600, "1..", "medium", "", "live",
     "Largest inflated size of one compressed batch; a longer one is refused."),
    ("errors.deadletterqueue.auto.create.topics.enable", "boolean", False, "", "medium", "cluster",
     "live", "The dead-letter topic of a share group is created when it is first needed."),
    ("errors.deadletterqueue.topic.name.prefix", "string", "dlq.", "", "medium", "cluster", "live",
     "What the names of dead-letter topics begin with; empty: anything."),
    ("fetch.gather.max.ms", "int", 10, "0..1000", "low", "", "live",
     "How long a busy broker lets short answers to many readers wait for more; 0: not at all."),
    ("log.dir.free.bytes.min", "long", -1, "-1..", "high", "cluster", "live",
     "Free space below which produce gets error 56 and all else goes on; -1: 2 %, at most 1 GiB."),
    ("log.flush.acks.all.enable", "boolean", True, "", "high", "", "live",
     "An acks=all answer waits for the flush here when no other in-sync replica holds the batch."),
    ("metrics.listener", "string", "", "", "medium", "", "live",
     "host:port of the metrics endpoint (Prometheus, OpenMetrics); empty: none, port 0: a free "
     "one."),
    ("metrics.ssl.keystore.location", "string", "", "", "medium", "", "live",
     "PEM file of the metrics endpoint's certificate and key, read again when it changes; empty: "
     "plain HTTP."),
    ("metrics.token", "password", None, "", "medium", "", "live",
     "Bearer token that a request to the metrics endpoint must bring; unset: none."),
    ("password.encoder.old.secret", "password", None, "", "medium", "", "live",
     "The password.encoder.secret before, while what it sealed is sealed anew."),
    ("password.encoder.secret", "password", None, "", "medium", "", "live",
     "Encrypts sensitive settings that are altered at run time; alike on all nodes."),
    ("password.encoder.secret.file", "string", "", "", "medium", "", "live",
     "File that password.encoder.secret stands in."),
    ("quorum.cluster.id", "string", "", "", "medium", "", "live",
     "Id of the only cluster that a controller with empty directories may join; empty: any."),
    ("quorum.etcd.client.port", "int", 2379, "1..65535", "medium", "", "live",
     "Port on each controller's host where its etcd serves the controllers."),
    ("quorum.etcd.command", "string", "etcd", "non-empty", "medium", "", "live",
     "Name or path of the etcd that brokerd runs on the hosts of several controllers."),
    ("quorum.etcd.endpoints", "list", (), "", "medium", "", "live",
     "host:port of an etcd that others run; empty: brokerd runs one on each controller's host."),
    ("quorum.etcd.password", "password", None, "", "medium", "", "live",
     "Password of quorum.etcd.username."),
    ("quorum.etcd.peer.port", "int", 2380, "1..65535", "medium", "", "live",
     "Port on each controller's host where its etcd serves the other members."),
    ("quorum.etcd.prefix", "string", "/pylog/", "non-empty", "low", "", "live",
     "What the names of this cluster's keys in etcd begin with."),
    ("quorum.etcd.replace.after.ms", "int", 10000, "0..", "medium", "", "live",
     "How long an etcd member must be unreachable before an empty node at its address replaces "
     "it."),
    ("quorum.etcd.security.protocol", "string", None, "~PLAINTEXT|SSL", "medium", "", "live",
     "How etcd is reached; unset: where brokerd runs it as the controllers, else PLAINTEXT."),
    ("quorum.etcd.username", "string", None, "", "medium", "", "live",
     "Who this node is to an etcd that asks for a login; unset: it does not log in."),
    ("quorum.zookeeper.connect", "list", (), "", "medium", "", "live",
     "host:port of the servers of a ZooKeeper that keeps the controllers' quorum; empty: an etcd "
     "does."),
    ("quorum.zookeeper.digest", "password", None, "", "medium", "", "live",
     "user:password of ZooKeeper's digest scheme; what is kept there is that user's alone."),
    ("quorum.zookeeper.prefix", "string", "/pylog/", "non-empty", "low", "", "live",
     "What the paths of this cluster's nodes in ZooKeeper begin with."),
    ("quorum.zookeeper.ssl.enable", "boolean", False, "", "medium", "", "live",
     "ZooKeeper is reached by TLS, and its certificates name its hosts."),
    ("quorum.zookeeper.ssl.keystore.location", "string", "", "", "medium", "", "live",
     "PEM file of the certificate and key to show to ZooKeeper; empty: none is shown."),
    ("quorum.zookeeper.ssl.truststore.location", "string", "", "", "medium", "", "live",
     "PEM file of those who sign ZooKeeper's certificates; empty: the system's."),
    ("records.validate.enable", "boolean", True, "", "high", "", "live",
     "The records of each produced batch are walked; false trusts the CRC alone."),
    ("replica.flush.before.fetch.enable", "boolean", True, "", "high", "", "live",
     "acks=all means on the disks of the in-sync replicas; false: in their page caches."),
    ("request.log.slow.ms", "long", 1000, "-1..", "low", "", "live",
     "Requests that take longer are logged, a few each second; -1: none are."),
    ("sasl.oauthbearer.expected.scope", "list", (), "", "medium", "", "live",
     "Scopes that a token must have, all of them."),
    ("sasl.oauthbearer.unsecured.enable", "boolean", False, "", "low", "", "live",
     "Tokens without a signature are taken, from anybody: for tests."),
    ("ssl.crl.location", "string", "", "", "medium", "broker", "live",
     "PEM file of revoked certificates, which clients may not show; empty: none are looked up."),
)
