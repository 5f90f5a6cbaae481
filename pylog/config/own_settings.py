"""Broker settings that exist in pylog only, one row each.

Owns: the rows of settings that Kafka does not have.
Invariants: names are unique and sorted, and none of them exists in Kafka; a former name is not in
  use for another setting.
"""

# log.flush.acks.all.enable: a response of Kafka means page cache only, and a power cut then loses
# acknowledged records. bench/ measures the cost of the flush, of records.validate.enable and of
# the size limit; `python -m bench.fanout` measures fetch.batching.max.ms.
# control.*: Kafka limits only the frame (socket.request.max.bytes); a request of 260 KB can then
# produce a response of 7.9 GB. Reasonable requests stay below these limits: one million partitions,
# about as many as one Kafka cluster holds, take 17 MB in a ListOffsets request, 4 MB in an
# OffsetFetch request and at most 40 MB in a response. The settings of 10,000 topics with their
# documentation take 38 MB.
# quorum.etcd.*: etcd does for several controllers what Kafka's controllers do themselves. The ports
# differ on shared machines; endpoints, prefix, protocol and login differ with an existing etcd.
# FORMER_NAMES: old names, accepted with a warning for one release.
# quorum.zookeeper.*: the names after "ssl" are those of zookeeper.ssl.* in Kafka 3.
FORMER_NAMES = {
    "control.request.elements.max": "request.entries.max",
    "fetch.gather.max.ms": "fetch.batching.max.ms",
    "log.dir.free.bytes.min": "log.dir.min.free.bytes",
    "request.log.slow.ms": "slow.request.threshold.ms",
}
OWN = (
    ("audit.log.data.enable", "boolean", False, "", "low", "", "live",
     "Adds allowed reads and writes to the audit log. Denied requests and changes are always "
     "logged."),
    ("audit.log.file", "string", "", "", "medium", "", "live",
     "File of the audit log, one JSON object per line. Empty: no file."),
    ("audit.log.topic", "string", "", "", "low", "", "live",
     "Topic that receives the audit log as records, created on first use. Empty: no topic."),
    ("console.audit.file", "string", "", "", "medium", "", "live",
     "File of the web console's audit log, one JSON object per line. Empty: brokerd's "
     "audit.log.file."),
    ("console.auth", "string", None, "~SASL|OIDC|PROXY|NONE", "medium", "", "live",
     "Login of the web console: sasl, oidc, proxy, or none. Unset: sasl if its cluster connection "
     "needs a login, else none."),
    ("console.bootstrap.listener", "string", None, "", "medium", "", "live",
     "Name of the broker's listener that the web console uses. Unset: the first one."),
    ("console.cluster.name", "string", "", "", "low", "", "live",
     "Name of the cluster in the web console. Empty: the address of the bootstrap broker."),
    ("console.insecure", "boolean", False, "", "medium", "", "live",
     "Allows console.auth=none on an address that other machines can reach."),
    ("console.lag.interval.ms", "long", 10000, "0..", "low", "", "live",
     "The web console reads the lag of all groups after this time, less often if that would take "
     "more than 2 % of the time. 0: only for open pages."),
    ("console.listener", "string", "", "", "medium", "", "live",
     "host:port of the web console. Empty: disabled. Port 0: any free port."),
    ("console.masking.file", "string", "", "", "medium", "", "live",
     "TOML file of the fields of records that the web console hides. Empty: none."),
    ("console.oidc.client.id", "string", "", "", "medium", "", "live",
     "Client id of the web console at the issuer, for console.auth=oidc."),
    ("console.oidc.client.secret", "password", None, "", "medium", "", "live",
     "Secret of the web console at the issuer. Unset: the console is a public client."),
    ("console.oidc.issuer", "string", "", "", "medium", "", "live",
     "URL of the OpenID Connect issuer, for console.auth=oidc."),
    ("console.oidc.principal.claim", "string", "sub", "", "low", "", "live",
     "Claim of the id token that names the user in the web console."),
    ("console.oidc.scopes", "string", "openid", "", "low", "", "live",
     "Scopes that the web console requests, separated by spaces."),
    ("console.permissions.file", "string", "", "", "medium", "", "live",
     "TOML file of users' permissions in the web console. Empty: the cluster's ACLs decide."),
    ("console.proxy.addresses", "list", "", "", "medium", "", "live",
     "Addresses or networks of the proxy that logs users in, for console.auth=proxy."),
    ("console.proxy.principal.header", "string", "", "", "medium", "", "live",
     "Header with the user's name that this proxy sets, for console.auth=proxy."),
    ("console.read.only", "boolean", False, "", "medium", "", "live",
     "Rejects every change in the web console and hides its forms."),
    ("console.schema.registry.url", "password", None, "", "medium", "", "live",
     "URLs of the schema registry for the web console, with user and password. Unset: none."),
    ("console.search.bytes.max", "long", 0, "0..", "low", "", "live",
     "Bytes that one search of the web console reads at most. 0: no limit."),
    ("console.search.concurrent.max", "int", 4, "1..", "medium", "", "live",
     "Searches of all users of the web console that run at the same time."),
    ("console.search.matches.max", "int", 500, "1..100000", "low", "", "live",
     "Records that one search of the web console finds before it stops."),
    ("console.search.seconds.max", "int", 60, "1..", "low", "", "live",
     "Time after which a search of the web console stops and can be continued."),
    ("console.session.idle.ms", "long", 1800000, "1000..", "medium", "", "live",
     "A session of the web console ends after this time without a request."),
    ("console.session.max.ms", "long", 43200000, "1000..", "medium", "", "live",
     "A session of the web console ends after this time in any case."),
    ("console.ssl.keystore.location", "string", "", "", "medium", "", "live",
     "PEM file with certificate and key of the web console. Empty: plain HTTP."),
    ("console.url", "string", "", "", "medium", "", "live",
     "URL under which browsers reach the web console, if that is not its listener. Needed for "
     "console.auth=oidc."),
    ("consume.flushed.records.only", "boolean", False, "", "medium", "cluster", "live",
     "Consumers read a record only after it is on the leader's disk, also with one replica."),
    ("control.request.bytes.max", "int", 33554432, "65536..", "medium", "", "live",
     "Largest request other than Produce and Fetch. A longer request closes its connection."),
    ("control.response.bytes.max", "int", 67108864, "65536..", "medium", "", "live",
     "Largest response other than Fetch. A longer response closes the connection."),
    ("decompressed.batch.bytes.max", "long", 104857600, "1..", "medium", "", "live",
     "Largest decompressed size of one batch. Larger batches are rejected."),
    ("errors.deadletterqueue.auto.create.topics.enable", "boolean", False, "", "medium", "cluster",
     "live", "Creates the dead-letter topic of a share group on first use."),
    ("errors.deadletterqueue.topic.name.prefix", "string", "dlq.", "", "medium", "cluster", "live",
     "Prefix that names of dead-letter topics must have. Empty: any name is allowed."),
    ("fetch.batching.max.ms", "int", 10, "0..1000", "low", "", "live",
     "Longest time that a busy broker delays short fetch responses to batch them. 0 disables it."),
    ("log.dir.min.free.bytes", "long", -1, "-1..", "high", "cluster", "live",
     "Free space below which Produce fails with error 56; other requests continue. -1: 2 %, at "
     "most 1 GiB."),
    ("log.flush.acks.all.enable", "boolean", True, "", "high", "", "live",
     "An acks=all response waits for the local flush when no other in-sync replica has the batch."),
    ("metrics.listener", "string", "", "", "medium", "", "live",
     "host:port of the metrics endpoint (Prometheus, OpenMetrics). Empty: disabled. Port 0: "
     "any free port."),
    ("metrics.ssl.keystore.location", "string", "", "", "medium", "", "live",
     "PEM file with certificate and key of the metrics endpoint, reloaded when it changes. "
     "Empty: plain HTTP."),
    ("metrics.token", "password", None, "", "medium", "", "live",
     "Bearer token that requests to the metrics endpoint must contain. Unset: no authentication."),
    ("password.encoder.old.secret", "password", None, "", "medium", "", "live",
     "Previous password.encoder.secret; values encrypted with it are encrypted again with the "
     "new one."),
    ("password.encoder.secret", "password", None, "", "medium", "", "live",
     "Encrypts sensitive settings that are changed at run time. Must be the same on all nodes."),
    ("password.encoder.secret.file", "string", "", "", "medium", "", "live",
     "File that contains password.encoder.secret."),
    ("quorum.cluster.id", "string", "", "", "medium", "", "live",
     "Cluster id that a controller with empty directories may join. Empty: any cluster."),
    ("quorum.etcd.client.port", "int", 2379, "1..65535", "medium", "", "live",
     "Client port of the etcd on each controller's host."),
    ("quorum.etcd.command", "string", "etcd", "non-empty", "medium", "", "live",
     "Name or path of the etcd program that brokerd runs on controller hosts."),
    ("quorum.etcd.endpoints", "list", (), "", "medium", "", "live",
     "host:port of an existing etcd. Empty: brokerd runs one on each controller's host."),
    ("quorum.etcd.password", "password", None, "", "medium", "", "live",
     "Password of quorum.etcd.username."),
    ("quorum.etcd.peer.port", "int", 2380, "1..65535", "medium", "", "live",
     "Peer port of the etcd on each controller's host."),
    ("quorum.etcd.prefix", "string", "/pylog/", "non-empty", "low", "", "live",
     "Prefix of this cluster's keys in etcd."),
    ("quorum.etcd.replace.after.ms", "int", 10000, "0..", "medium", "", "live",
     "How long an etcd member must be unreachable before an empty node at its address replaces "
     "it."),
    ("quorum.etcd.security.protocol", "string", None, "~PLAINTEXT|SSL", "medium", "", "live",
     "Protocol for connections to etcd. Unset: the controllers' if brokerd runs etcd, else "
     "PLAINTEXT."),
    ("quorum.etcd.username", "string", None, "", "medium", "", "live",
     "User name for an etcd that requires authentication. Unset: no login."),
    ("quorum.zookeeper.connect", "list", (), "", "medium", "", "live",
     "host:port of ZooKeeper servers that store the controllers' quorum. Empty: etcd stores it."),
    ("quorum.zookeeper.digest", "password", None, "", "medium", "", "live",
     "user:password for ZooKeeper's digest scheme. Only this user can then access the stored "
     "nodes."),
    ("quorum.zookeeper.prefix", "string", "/pylog/", "non-empty", "low", "", "live",
     "Path prefix of this cluster's nodes in ZooKeeper."),
    ("quorum.zookeeper.ssl.enable", "boolean", False, "", "medium", "", "live",
     "Connects to ZooKeeper with TLS and verifies host names."),
    ("quorum.zookeeper.ssl.keystore.location", "string", "", "", "medium", "", "live",
     "PEM file with the client certificate and key for ZooKeeper. Empty: no client certificate."),
    ("quorum.zookeeper.ssl.truststore.location", "string", "", "", "medium", "", "live",
     "PEM file of the authorities that sign ZooKeeper's certificates. Empty: the system's."),
    ("records.validate.enable", "boolean", True, "", "high", "", "live",
     "Validates each record of produced batches. false: checks the batch's CRC only."),
    ("replica.flush.before.fetch.enable", "boolean", True, "", "high", "", "live",
     "acks=all waits until the in-sync replicas have flushed. false: until they have it in "
     "page cache."),
    ("request.entries.max", "int", 1048576, "1000..", "medium", "", "live",
     "Largest number of partitions, groups or resources in one request."),
    ("sasl.oauthbearer.allow.unverified.audience", "boolean", False, "", "medium", "", "live",
     "Accepts tokens for any audience (Kafka 4.4)."),
    ("sasl.oauthbearer.allow.unverified.issuer", "boolean", False, "", "medium", "", "live",
     "Accepts validly signed tokens from any issuer (Kafka 4.4)."),
    ("sasl.oauthbearer.expected.scope", "list", (), "", "medium", "", "live",
     "Scopes that a token must contain, all of them."),
    ("sasl.oauthbearer.unsecured.enable", "boolean", False, "", "low", "", "live",
     "Accepts unsigned tokens from any client. For tests only."),
    ("slow.request.threshold.ms", "long", 1000, "-1..", "low", "", "live",
     "Logs requests that take longer, a few per second. -1 disables it."),
    ("ssl.crl.location", "string", "", "", "medium", "broker", "live",
     "PEM file of revoked client certificates. Empty: revocation is not checked."),
)
