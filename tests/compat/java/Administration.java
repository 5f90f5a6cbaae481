import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Every call of Kafka 4.3's Admin client that a single broker without security supports.
 * Arguments are bootstrap, scenario, topic; the last line is JSON.
 */
public final class Administration {
    private final String bootstrap;
    private final String topic;
    private final String group;
    private final TopicPartition first;
    private final Set<TopicPartition> partitions;
    private final ConfigResource topicResource;
    private final List<String> failures = new ArrayList<>();
    private int calls;

    private Administration(String bootstrap, String topic) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.group = topic + "-group";
        this.first = new TopicPartition(topic, 0);
        this.partitions = Set.of(first);
        this.topicResource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    public static void main(String[] arguments) throws Exception {
        Administration one = new Administration(arguments[0], arguments[2]);
        one.prepare();
        try (Admin admin = Admin.create(one.settings())) {
            one.topics(admin);
            one.records(admin);
            one.settings(admin);
            one.groups(admin);
            one.cluster(admin);
            one.quotas(admin);
        }
        boolean ok = one.failures.isEmpty();
        System.out.println("{\"ok\": " + ok + ", \"note\": \""
            + (ok ? one.calls + " calls" : String.join("; ", one.failures)) + "\"}");
        System.exit(ok ? 0 : 1);
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("request.timeout.ms", "10000");
        settings.put("default.api.timeout.ms", "15000");
        return settings;
    }

    /** Ten records, and a group that has read four of them. */
    private void prepare() throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                settings(), new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < 10; number++) {
                producer.send(new ProducerRecord<>(topic, 0, 1_760_000_000_000L + number,
                    "key", "value")).get();
            }
        }
        Properties settings = settings();
        settings.put("group.id", group);
        settings.put("group.instance.id", "instance");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(Collections.singletonList(topic));
            while (consumer.poll(Duration.ofMillis(500)).isEmpty()) {
                continue;
            }
            consumer.commitSync(Map.of(first, new OffsetAndMetadata(4, Optional.of(0), "note")));
        }
    }

    /** The call's result must match the pattern. An error is reported as its class and message. */
    private void call(String name, String pattern, Callable<Object> what) {
        tell(name, pattern, told(what));
    }

    /** The same for a change, which every broker may apply a moment later. */
    private void eventually(String name, String pattern, Callable<Object> what) throws Exception {
        long endMs = System.currentTimeMillis() + 5_000;
        String told = told(what);
        while (!holds(pattern, told) && System.currentTimeMillis() < endMs) {
            Thread.sleep(100);
            told = told(what);
        }
        tell(name, pattern, told);
    }

    private static String told(Callable<Object> what) {
        String told;
        try {
            told = String.valueOf(what.call());
        } catch (ExecutionException failure) {
            told = failure.getCause().getClass().getSimpleName() + ": "
                + failure.getCause().getMessage();
        } catch (Exception failure) {
            told = failure.toString();
        }
        return told.replaceAll("\\s+", " ");
    }

    private static boolean holds(String pattern, String told) {
        return Pattern.compile(pattern).matcher(told).find();
    }

    private void tell(String name, String pattern, String told) {
        boolean holds = holds(pattern, told);
        calls++;
        System.out.println((holds ? "" : "NOT /" + pattern + "/ ") + name + ": " + told);
        if (!holds) {
            failures.add(name);
        }
    }

    private void topics(Admin admin) {
        String made = topic + "-made";
        call("createTopics", "^3 1 .*retention.ms", () -> {
            CreateTopicsResult result = admin.createTopics(List.of(
                new NewTopic(made, Optional.of(3), Optional.empty())
                    .configs(Map.of("retention.ms", "5000000"))));
            return result.numPartitions(made).get() + " " + result.replicationFactor(made).get()
                + " " + result.config(made).get().get("retention.ms");
        });
        call("createTopics validateOnly", "^TopicExistsException: .*-made' already exists",
            () -> admin.createTopics(List.of(new NewTopic(made, 1, (short) 1)),
                new CreateTopicsOptions().validateOnly(true)).all().get());
        call("createTopics of 3 replicas", "^InvalidReplicationFactorException: ",
            () -> admin.createTopics(List.of(new NewTopic(topic + "-x", 1, (short) 3)))
                .all().get());
        call("createTopics with an assignment", "^2$", () -> admin.createTopics(List.of(
            new NewTopic(topic + "-placed", Map.of(0, List.of(1), 1, List.of(1)))))
            .numPartitions(topic + "-placed").get());
        call("listTopics", "^true$", () -> admin.listTopics().names().get()
            .containsAll(Set.of(made, topic)));
        call("listTopics internal", "isInternal|internal=true",
            () -> admin.listTopics(new ListTopicsOptions().listInternal(true)).listings().get());
        call("describeTopics", "partitions=\\(partition=0, leader=127.0.0.1:\\d+ \\(id: 1",
            () -> admin.describeTopics(List.of(made)).allTopicNames().get().get(made));
        call("describeTopics by id", "name=" + made, () -> admin.describeTopics(
            TopicCollection.ofTopicIds(List.of(admin.describeTopics(List.of(made))
                .allTopicNames().get().get(made).topicId()))).allTopicIds().get());
        call("describeTopics unknown", "^UnknownTopicOrPartitionException",
            () -> admin.describeTopics(List.of(topic + "-none")).allTopicNames().get());
        call("createPartitions", "^null$", () -> admin.createPartitions(
            Map.of(made, NewPartitions.increaseTo(5))).all().get());
        call("createPartitions fewer", "^InvalidPartitionsException", () -> admin.createPartitions(
            Map.of(made, NewPartitions.increaseTo(2))).all().get());
        call("deleteTopics by id", "^null$", () -> admin.deleteTopics(
            TopicCollection.ofTopicIds(List.of(admin.describeTopics(List.of(made))
                .allTopicNames().get().get(made).topicId()))).all().get());
        call("deleteTopics unknown", "^UnknownTopicOrPartitionException",
            () -> admin.deleteTopics(List.of(made)).all().get());
    }

    private Object offset(Admin admin, OffsetSpec spec) throws Exception {
        ListOffsetsResult.ListOffsetsResultInfo told = admin.listOffsets(Map.of(first, spec),
            new ListOffsetsOptions(IsolationLevel.READ_COMMITTED)).partitionResult(first).get();
        return told.offset() + " " + told.timestamp() + " " + told.leaderEpoch();
    }

    private void records(Admin admin) {
        call("listOffsets latest", "^10 -1 Optional\\[0\\]",
            () -> offset(admin, OffsetSpec.latest()));
        call("listOffsets earliest", "^0 -1 ", () -> offset(admin, OffsetSpec.earliest()));
        call("listOffsets max timestamp", "^9 1760000000009 ",
            () -> offset(admin, OffsetSpec.maxTimestamp()));
        call("listOffsets by time", "^3 1760000000003 ",
            () -> offset(admin, OffsetSpec.forTimestamp(1_760_000_000_003L)));
        call("listOffsets beyond", "^-1 -1 ",
            () -> offset(admin, OffsetSpec.forTimestamp(1_900_000_000_000L)));
        call("listOffsets earliest local", "^0 -1 ",
            () -> offset(admin, OffsetSpec.earliestLocal()));
        call("listOffsets latest tiered", "^-1 -1 ",
            () -> offset(admin, OffsetSpec.latestTiered()));
        call("describeProducers", "producerId=\\d+, producerEpoch=0, lastSequence=9,",
            () -> admin.describeProducers(partitions).partitionResult(first).get()
                .activeProducers());
        call("deleteRecords", "^2$", () -> admin.deleteRecords(
            Map.of(first, RecordsToDelete.beforeOffset(2))).lowWatermarks().get(first).get()
            .lowWatermark());
        call("deleteRecords beyond the end", "^OffsetOutOfRangeException",
            () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(99)))
                .all().get());
        call("describeLogDirs", "size=\\d{3,}", () -> admin.describeLogDirs(List.of(1))
            .allDescriptions().get().get(1).values().iterator().next().replicaInfos().get(first));
        call("describeLogDirs totals", "true", () -> admin.describeLogDirs(List.of(1))
            .allDescriptions().get().get(1).values().iterator().next().totalBytes().isPresent());
        call("describeReplicaLogDirs", "currentReplicaLogDir=/", () -> admin
            .describeReplicaLogDirs(List.of(new TopicPartitionReplica(topic, 0, 1)))
            .all().get());
        call("alterReplicaLogDirs to nowhere", "^LogDirNotFoundException", () -> admin
            .alterReplicaLogDirs(Map.of(new TopicPartitionReplica(topic, 0, 1), "/nowhere"))
            .all().get());
        call("electLeaders", "^(null|ElectionNotNeededException)", () -> admin.electLeaders(
            ElectionType.PREFERRED, partitions).all().get());
        call("electLeaders each", "ElectionNotNeededException", () -> admin.electLeaders(
            ElectionType.PREFERRED, partitions).partitions().get());
        call("alterPartitionReassignments", "^null$", () -> admin.alterPartitionReassignments(
            Map.of(first, Optional.of(new NewPartitionReassignment(List.of(1))))).all().get());
        call("alterPartitionReassignments to nobody", "^InvalidReplicaAssignmentException",
            () -> admin.alterPartitionReassignments(
                Map.of(first, Optional.of(new NewPartitionReassignment(List.of(7))))).all().get());
        call("alterPartitionReassignments cancel", "^NoReassignmentInProgressException",
            () -> admin.alterPartitionReassignments(Map.of(first, Optional.empty())).all().get());
        call("listPartitionReassignments", "^\\{\\}$",
            () -> admin.listPartitionReassignments().reassignments().get());
    }

    private Object alter(Admin admin, ConfigResource resource, AlterConfigOp.OpType type,
            String key, String value) throws Exception {
        return admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry(key, value), type)))).all().get();
    }

    private Object config(Admin admin, ConfigResource resource, String key) throws Exception {
        ConfigEntry entry = admin.describeConfigs(List.of(resource),
            new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true))
            .all().get().get(resource).get(key);
        return entry == null ? null : entry.value() + " " + entry.source() + " " + entry.type()
            + " " + entry.isReadOnly() + " " + entry.synonyms().size() + " "
            + (entry.documentation() != null && !entry.documentation().isEmpty());
    }

    private void settings(Admin admin) throws Exception {
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        ConfigResource brokers = new ConfigResource(ConfigResource.Type.BROKER, "");
        ConfigResource logger = new ConfigResource(ConfigResource.Type.BROKER_LOGGER, "1");
        ConfigResource ofGroup = new ConfigResource(ConfigResource.Type.GROUP, group);
        ConfigResource metrics = new ConfigResource(
            ConfigResource.Type.CLIENT_METRICS, topic + "-subscription");
        call("describeConfigs default", "^delete DEFAULT_CONFIG LIST false 1 true$",
            () -> config(admin, topicResource, "cleanup.policy"));
        call("append", "^null$", () -> alter(admin, topicResource, AlterConfigOp.OpType.APPEND,
            "cleanup.policy", "compact"));
        eventually("describeConfigs set", "^delete,compact DYNAMIC_TOPIC_CONFIG LIST false 2 true$",
            () -> config(admin, topicResource, "cleanup.policy"));
        call("subtract", "^null$", () -> alter(admin, topicResource,
            AlterConfigOp.OpType.SUBTRACT, "cleanup.policy", "compact"));
        call("delete", "^null$", () -> alter(admin, topicResource, AlterConfigOp.OpType.DELETE,
            "cleanup.policy", ""));
        call("a wrong value", "^InvalidConfigurationException: Invalid value 7 for",
            () -> alter(admin, topicResource, AlterConfigOp.OpType.SET, "compression.type", "7"));
        call("an unknown key", "^InvalidConfigurationException: Unknown topic config name: no",
            () -> alter(admin, topicResource, AlterConfigOp.OpType.SET, "no.such.key", "7"));
        call("a broker's setting", "^null$", () -> alter(admin, broker, AlterConfigOp.OpType.SET,
            "log.cleaner.threads", "2"));
        eventually("describe a broker", "^2 DYNAMIC_BROKER_CONFIG INT false 2 true$",
            () -> config(admin, broker, "log.cleaner.threads"));
        call("delete a broker's", "^null$", () -> alter(admin, broker,
            AlterConfigOp.OpType.DELETE, "log.cleaner.threads", ""));
        call("a read-only setting", "^InvalidRequestException: .*node.id",
            () -> alter(admin, broker, AlterConfigOp.OpType.SET, "node.id", "7"));
        call("the default of brokers", "^null$", () -> alter(admin, brokers,
            AlterConfigOp.OpType.SET, "message.max.bytes", "1048600"));
        eventually("describe the default", "^1048600 DYNAMIC_DEFAULT_BROKER_CONFIG",
            () -> config(admin, brokers, "message.max.bytes"));
        eventually("seen at a topic", "^1048600 DYNAMIC_DEFAULT_BROKER_CONFIG INT false",
            () -> config(admin, topicResource, "max.message.bytes"));
        call("delete the default", "^null$", () -> alter(admin, brokers,
            AlterConfigOp.OpType.DELETE, "message.max.bytes", ""));
        call("loggers", "root", () -> admin.describeConfigs(List.of(logger)).all().get());
        call("a logger's level", "^null$", () -> alter(admin, logger, AlterConfigOp.OpType.SET,
            "root", "INFO"));
        call("a group's setting", "^null$", () -> alter(admin, ofGroup, AlterConfigOp.OpType.SET,
            "consumer.session.timeout.ms", "50000"));
        eventually("describe a group", "^50000 DYNAMIC_GROUP_CONFIG INT false 2 true$",
            () -> config(admin, ofGroup, "consumer.session.timeout.ms"));
        call("a subscription", "^null$", () -> alter(admin, metrics, AlterConfigOp.OpType.SET,
            "interval.ms", "1000"));
        eventually("describe a subscription", "^1000 DYNAMIC_CLIENT_METRICS_CONFIG",
            () -> config(admin, metrics, "interval.ms"));
        eventually("listConfigResources", "-subscription",
            () -> admin.listConfigResources().all().get());
        eventually("listConfigResources of a kind", "type=GROUP, name='" + group,
            () -> admin.listConfigResources(Set.of(ConfigResource.Type.GROUP),
                new ListConfigResourcesOptions()).all().get());
        call("an unknown topic", "^UnknownTopicOrPartitionException",
            () -> admin.describeConfigs(List.of(new ConfigResource(
                ConfigResource.Type.TOPIC, topic + "-none"))).all().get());
    }

    private void groups(Admin admin) throws Exception {
        call("listGroups", group + "', type=Classic, protocol='consumer'", () -> admin.listGroups(
            new ListGroupsOptions().withTypes(Set.of(GroupType.CLASSIC))).all().get());
        call("listGroups of a state", "^false$", () -> admin.listGroups(new ListGroupsOptions()
            .inGroupStates(Set.of(GroupState.DEAD))).all().get().toString().contains(group));
        call("describeConsumerGroups with a member", "groupInstanceId=instance",
            () -> admin.describeConsumerGroups(List.of(group)).all().get().get(group).members());
        call("describeClassicGroups", "groupId='?" + group + ".*protocol='?consumer",
            () -> admin.describeClassicGroups(List.of(group)).all().get().get(group));
        call("describeClassicGroups unknown", "^GroupIdNotFoundException",
            () -> admin.describeClassicGroups(List.of(topic + "-none")).all().get());
        call("listConsumerGroupOffsets", "offset=4, leaderEpoch=0, metadata='note'",
            () -> admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get());
        call("listConsumerGroupOffsets of two", group, () -> admin.listConsumerGroupOffsets(
            Map.of(group, new ListConsumerGroupOffsetsSpec(),
                topic + "-none", new ListConsumerGroupOffsetsSpec()),
            new ListConsumerGroupOffsetsOptions().requireStable(true)).all().get());
        call("alterConsumerGroupOffsets of an active group", "^UnknownMemberIdException",
            () -> admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(1)))
                .all().get());
        call("deleteConsumerGroups of an active group", "^GroupNotEmptyException",
            () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        call("deleteConsumerGroupOffsets of a read topic",
            "^GroupSubscribedToTopicException",
            () -> admin.deleteConsumerGroupOffsets(group, partitions).all().get());
        call("removeMembersFromConsumerGroup unknown", "^UnknownMemberIdException",
            () -> admin.removeMembersFromConsumerGroup(group,
                new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("none"))))
                .all().get());
        call("removeMembersFromConsumerGroup", "^null$",
            () -> admin.removeMembersFromConsumerGroup(group,
                new RemoveMembersFromConsumerGroupOptions()).all().get());
        eventually("describeConsumerGroups empty", "groupState=Empty",
            () -> admin.describeConsumerGroups(List.of(group)).all().get().get(group));
        call("alterConsumerGroupOffsets", "^null$", () -> admin.alterConsumerGroupOffsets(
            group, Map.of(first, new OffsetAndMetadata(7))).all().get());
        call("alterConsumerGroupOffsets of an unknown topic",
            "^UnknownTopicOrPartitionException", () -> admin.alterConsumerGroupOffsets(group,
                Map.of(new TopicPartition(topic + "-none", 0), new OffsetAndMetadata(7)))
                .all().get());
        call("deleteConsumerGroupOffsets", "^null$",
            () -> admin.deleteConsumerGroupOffsets(group, partitions).all().get());
        call("deleteConsumerGroups", "^(null|GroupIdNotFoundException)",
            () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        call("deleteConsumerGroups unknown", "^GroupIdNotFoundException",
            () -> admin.deleteConsumerGroups(List.of(group)).all().get());
    }

    private void cluster(Admin admin) {
        call("describeCluster", "^1 \\S{22} \\[127.0.0.1:\\d+ \\(id: 1 ", () -> {
            DescribeClusterResult result = admin.describeCluster();
            return result.controller().get().id() + " " + result.clusterId().get() + " "
                + result.nodes().get();
        });
        call("describeCluster with operations", "DESCRIBE", () -> admin.describeCluster(
            new DescribeClusterOptions().includeAuthorizedOperations(true))
            .authorizedOperations().get());
        call("describeMetadataQuorum", "leaderId=1.*replicaId=1",
            () -> admin.describeMetadataQuorum().quorumInfo().get());
        call("describeFeatures", "metadata.version", () -> admin.describeFeatures()
            .featureMetadata().get().finalizedFeatures());
        call("updateFeatures down", "Exception", () -> admin.updateFeatures(Map.of(
            "metadata.version", new FeatureUpdate((short) 1,
                FeatureUpdate.UpgradeType.SAFE_DOWNGRADE)),
            new UpdateFeaturesOptions().validateOnly(true)).all().get());
    }

    private void quotas(Admin admin) throws Exception {
        ClientQuotaEntity entity = new ClientQuotaEntity(Map.of(
            ClientQuotaEntity.USER, topic, ClientQuotaEntity.CLIENT_ID, "reader"));
        ClientQuotaFilter filter = ClientQuotaFilter.contains(List.of(
            ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.USER, topic)));
        call("alterClientQuotas", "^null$", () -> admin.alterClientQuotas(List.of(
            new ClientQuotaAlteration(entity, List.of(
                new ClientQuotaAlteration.Op("consumer_byte_rate", 1e9),
                new ClientQuotaAlteration.Op("request_percentage", 200.0))))).all().get());
        eventually("describeClientQuotas", "consumer_byte_rate=1.0E9|request_percentage=200.0",
            () -> admin.describeClientQuotas(filter).entities().get());
        call("an unknown quota", "^InvalidRequestException", () -> admin.alterClientQuotas(List.of(
            new ClientQuotaAlteration(entity, List.of(
                new ClientQuotaAlteration.Op("no_such_rate", 1.0))))).all().get());
        call("delete quotas", "^null$", () -> admin.alterClientQuotas(List.of(
            new ClientQuotaAlteration(entity, List.of(
                new ClientQuotaAlteration.Op("consumer_byte_rate", null),
                new ClientQuotaAlteration.Op("request_percentage", null))))).all().get());
        eventually("describeClientQuotas after", "^\\{\\}$",
            () -> admin.describeClientQuotas(filter).entities().get());
    }
}
