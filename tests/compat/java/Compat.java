import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client, 2.8 to 4.3: arguments are bootstrap, scenario, topic; the last line is JSON.
 * Only calls that all those versions have.
 */
public final class Compat {
    private static final long BASE_MS = 1_760_000_000_000L;
    private static final int PARTITIONS = 4;
    /** The last row of a full set is longer than any codec's block. */
    private static final int ROWS = 51;
    private static final int BIG_BYTES = 390_000;
    /** The driver prepares the topic of the scenario "reset" with offsets 3 to 19. */
    private static final int RESET_START = 3;
    private static final int RESET_END = 20;
    private final String bootstrap;
    private final String topic;

    private Compat(String bootstrap, String topic) {
        this.bootstrap = bootstrap;
        this.topic = topic;
    }

    public static void main(String[] arguments) {
        Compat client = new Compat(arguments[0], arguments[2]);
        try {
            String note = client.run(arguments[1]);
            System.out.println("{\"ok\": true, \"note\": \"" + note + "\"}");
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            String told = failure.toString().replaceAll("[\"\\\\\\p{Cntrl}]", "'");
            System.out.println("{\"ok\": false, \"note\": \"" + told + "\"}");
            System.exit(1);
        }
    }

    private String run(String scenario) throws Exception {
        switch (scenario) {
            case "codecs": return codecs();
            case "create": return new Compat(bootstrap, topic + "-new").create();
            case "group": return group();
            case "resume": return resume();
            case "seek": return seek();
            case "member": return member();
            case "reset": return reset();
            case "topics": return topics();
            case "configs": return configs();
            case "groups": return groups();
            case "transactions": return transactions();
            default: throw new IllegalArgumentException(scenario);
        }
    }

    private static byte[] value(int number) {
        byte[] bytes = new byte[number < ROWS - 1 ? number * 13 : BIG_BYTES];
        for (int place = 0; place < bytes.length; place++) {
            bytes[place] = (byte) (number * 7 + place);
        }
        return bytes;
    }

    private static String key(String stem, int number) {
        return stem + "-" + number;
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static void waitFor(String what, BooleanSupplier condition) throws Exception {
        long endMs = System.currentTimeMillis() + 45_000;
        while (!condition.getAsBoolean()) {
            check(System.currentTimeMillis() < endMs, "waited 45 s for: " + what);
            Thread.sleep(50);
        }
    }

    private void produce(String stem, int count, String codec, int partition) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        secure(settings);
        settings.put("compression.type", codec);
        settings.put("enable.idempotence", "true");
        settings.put("linger.ms", "20");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int number = 0; number < count; number++) {
                sent.add(producer.send(new ProducerRecord<>(
                    topic, partition, BASE_MS + 1000L * number,
                    key(stem, number).getBytes(StandardCharsets.UTF_8), value(number))));
            }
            for (Future<RecordMetadata> one : sent) {
                one.get();
            }
        }
    }

    /** The properties file with the security settings that the driver requests. */
    private static void secure(Properties settings) {
        String path = System.getenv("COMPAT_PROPERTIES");
        if (path == null) {
            return;
        }
        try (Reader reader = Files.newBufferedReader(Paths.get(path))) {
            settings.load(reader);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer(String group, String... more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        secure(settings);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("session.timeout.ms", "6000");
        settings.put("heartbeat.interval.ms", "1000");
        if (group != null) {
            settings.put("group.id", group);
            // The static member id (KIP-345) that the driver assigns to this program, if any.
            if (System.getenv("COMPAT_INSTANCE") != null) {
                settings.put("group.instance.id", System.getenv("COMPAT_INSTANCE"));
            }
        }
        for (int place = 0; place < more.length; place += 2) {
            settings.put(more[place], more[place + 1]);
        }
        return new KafkaConsumer<>(
            settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static List<ConsumerRecord<byte[], byte[]>> take(
            KafkaConsumer<byte[], byte[]> consumer, int count) {
        long endMs = System.currentTimeMillis() + 30_000;
        List<ConsumerRecord<byte[], byte[]>> taken = new ArrayList<>();
        while (taken.size() < count) {
            check(System.currentTimeMillis() < endMs, taken.size() + " of " + count + " in 30 s");
            consumer.poll(Duration.ofMillis(500)).forEach(taken::add);
        }
        check(taken.size() == count, taken.size() + " records instead of " + count);
        return taken;
    }

    private void readBack(String stem, long start, int first, int count) {
        try (KafkaConsumer<byte[], byte[]> consumer =
                consumer(null, "max.poll.records", String.valueOf(count))) {
            TopicPartition where = new TopicPartition(topic, 0);
            consumer.assign(Collections.singletonList(where));
            consumer.seek(where, start);
            int number = first;
            for (ConsumerRecord<byte[], byte[]> record : take(consumer, count)) {
                check(record.offset() == start + number - first, "offset " + record.offset());
                check(key(stem, number).equals(new String(record.key(), StandardCharsets.UTF_8)),
                    stem + ": another key at " + record.offset());
                check(Arrays.equals(value(number), record.value()),
                    stem + ": another value at " + record.offset());
                check(record.timestamp() == BASE_MS + 1000L * number,
                    stem + ": another timestamp at " + record.offset());
                number++;
            }
        }
    }

    private String codecs() throws Exception {
        String[] names = {"none", "gzip", "snappy", "lz4", "zstd"};
        for (int place = 0; place < names.length; place++) {
            produce(names[place], ROWS, names[place], 0);
            readBack(names[place], (long) ROWS * place, 0, ROWS);
        }
        return String.join(" ", names);
    }

    /** Sends a first record, which creates its topic. */
    private String create() throws Exception {
        produce("new", 5, "none", 0);
        readBack("new", 0, 0, 5);
        return "";
    }

    private final class Member extends Thread {
        final Set<String> keys = Collections.synchronizedSet(new HashSet<>());
        volatile Set<TopicPartition> share = Collections.emptySet();
        volatile boolean ending;
        volatile boolean telling;
        volatile Throwable failure;

        @Override
        public void run() {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(topic + "-group",
                    "partition.assignment.strategy",
                    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor")) {
                consumer.subscribe(Collections.singletonList(topic));
                while (!ending) {
                    consumer.poll(Duration.ofMillis(200)).forEach(record -> {
                        String key = new String(record.key(), StandardCharsets.UTF_8);
                        keys.add(key);
                        if (telling) {
                            System.out.println("key " + key);
                        }
                    });
                    share = new HashSet<>(consumer.assignment());
                    commit(consumer);
                }
            } catch (Throwable thrown) {
                failure = thrown;
            }
        }

        /** A cooperative member keeps polling if a rebalance prevents its commit. */
        private void commit(KafkaConsumer<byte[], byte[]> consumer) {
            try {
                consumer.commitSync();
            } catch (RebalanceInProgressException rebalance) {
                share = Collections.emptySet();
            }
        }

        boolean holds(int count) {
            if (failure != null) {
                throw new AssertionError("a member failed: " + failure);
            }
            return share.size() == count;
        }

        void leave() throws Exception {
            ending = true;
            join(45_000);
            check(!isAlive(), "a member did not leave");
            check(failure == null, "a member failed: " + failure);
        }
    }

    private String group() throws Exception {
        Member first = new Member();
        first.start();
        waitFor("one member with all partitions", () -> first.holds(PARTITIONS));
        Member second = new Member();
        second.start();
        waitFor("two members with half each", () -> first.holds(PARTITIONS / 2)
            && second.holds(PARTITIONS / 2)
            && Collections.disjoint(first.share, second.share));
        Set<String> sent = new HashSet<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            produce("two" + partition, 10, "none", partition);
            for (int number = 0; number < 10; number++) {
                sent.add(key("two" + partition, number));
            }
        }
        waitFor("every record at one of two members", () -> {
            Set<String> seen = new HashSet<>(Arrays.asList(first.keys.toArray(new String[0])));
            seen.addAll(Arrays.asList(second.keys.toArray(new String[0])));
            return seen.containsAll(sent);
        });
        check(!second.keys.isEmpty(), "the second member got no record");
        second.leave();
        waitFor("all partitions back", () -> first.holds(PARTITIONS));
        produce("one", 10, "none", PARTITIONS - 1);
        waitFor("the records after the leave", () -> first.keys.contains(key("one", 9)));
        first.leave();
        return "1 > 2 > 1 members, cooperative";
    }

    private String resume() throws Exception {
        produce("resume", 30, "none", 0);
        int next = 0;
        for (int count : new int[] {10, 20}) {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(
                    topic + "-group", "max.poll.records", String.valueOf(count))) {
                consumer.subscribe(Collections.singletonList(topic));
                for (ConsumerRecord<byte[], byte[]> record : take(consumer, count)) {
                    check(record.offset() == next, "offset " + record.offset() + ", not " + next);
                    next++;
                }
                consumer.commitSync();
            }
        }
        return "";
    }

    private String seek() throws Exception {
        produce("seek", 20, "none", 0);
        TopicPartition where = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(null)) {
            long offset = consumer.offsetsForTimes(
                Collections.singletonMap(where, BASE_MS + 6_500)).get(where).offset();
            check(offset == 7, "offset " + offset);
        }
        readBack("seek", 7, 7, 13);
        return "";
    }

    private KafkaProducer<byte[], byte[]> transactional(String id) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", id);
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
            settings, new ByteArraySerializer(), new ByteArraySerializer());
        producer.initTransactions();
        return producer;
    }

    /** Moves records to `goal` and commits the group's position, in one transaction. */
    private void move(String goal, String group, int count, boolean isCommitted) {
        try (KafkaProducer<byte[], byte[]> producer = transactional(group + "-id");
                KafkaConsumer<byte[], byte[]> consumer = consumer(
                    group, "max.poll.records", String.valueOf(count))) {
            consumer.subscribe(Collections.singletonList(topic));
            List<ConsumerRecord<byte[], byte[]>> taken = take(consumer, count);
            producer.beginTransaction();
            for (ConsumerRecord<byte[], byte[]> record : taken) {
                producer.send(new ProducerRecord<>(
                    goal, 0, record.timestamp(), record.key(), record.value()));
            }
            producer.sendOffsetsToTransaction(Collections.singletonMap(
                new TopicPartition(topic, 0),
                new OffsetAndMetadata(taken.get(count - 1).offset() + 1)),
                consumer.groupMetadata());
            if (isCommitted) {
                producer.commitTransaction();
            } else {
                producer.flush();
                producer.abortTransaction();
            }
        }
    }

    /** A second producer with the same id starts during a transaction: the first cannot commit. */
    private void overtaken(String goal, String id) {
        KafkaProducer<byte[], byte[]> first = transactional(id);
        first.beginTransaction();
        first.send(new ProducerRecord<>(goal, 0, null, "open".getBytes(StandardCharsets.UTF_8)));
        first.flush();
        try (KafkaProducer<byte[], byte[]> second = transactional(id)) {
            first.commitTransaction();
            throw new AssertionError("a producer that was overtaken could commit");
        } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
            first.close(Duration.ZERO);
        }
    }

    private String transactions() throws Exception {
        String goal = topic + "-goal";
        String group = topic + "-group";
        produce("moved", 40, "none", 0);
        try (Admin admin = client()) {
            admin.createTopics(Collections.singletonList(
                new NewTopic(goal, 1, (short) 1))).all().get();
        }
        overtaken(goal, group + "-id");
        move(goal, group, 10, false);
        move(goal, group, 10, true);
        move(goal, group, 15, false);
        move(goal, group, 30, true);
        TopicPartition where = new TopicPartition(goal, 0);
        for (String isolation : new String[] {"read_committed", "read_uncommitted"}) {
            int count = isolation.equals("read_committed") ? 40 : 66;
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(
                    null, "isolation.level", isolation)) {
                consumer.assign(Collections.singletonList(where));
                consumer.seekToBeginning(Collections.singletonList(where));
                int number = 0;
                for (ConsumerRecord<byte[], byte[]> record : take(consumer, count)) {
                    check(count != 40 || Arrays.equals(value(number++), record.value()),
                        "another value at " + record.offset());
                }
            }
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(group)) {
            TopicPartition source = new TopicPartition(topic, 0);
            long offset = consumer.committed(Collections.singleton(source)).get(source).offset();
            check(offset == 40, "committed is " + offset + ", not 40");
        }
        return "positions with the records, aborted ones unseen, a second producer of the same id";
    }

    /** Runs a member until it is killed. It prints its partitions and the keys it reads. */
    private String member() throws Exception {
        Member one = new Member();
        one.telling = true;
        one.start();
        Set<TopicPartition> told = null;
        while (one.failure == null) {
            Set<TopicPartition> share = one.share;
            if (!share.equals(told)) {
                StringBuilder line = new StringBuilder("share");
                share.forEach(where -> line.append(' ').append(where.partition()));
                System.out.println(line);
                told = share;
            }
            Thread.sleep(50);
        }
        throw new AssertionError("the member failed: " + one.failure);
    }

    private interface Nudge {
        void send() throws Exception;
    }

    private long first(KafkaConsumer<byte[], byte[]> consumer, Nudge nudge) throws Exception {
        long endMs = System.currentTimeMillis() + 45_000;
        while (true) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                return record.offset();
            }
            check(System.currentTimeMillis() < endMs, "no record in 45 s");
            nudge.send();
        }
    }

    private long first(String group, String policy, Nudge nudge) throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer =
                consumer(topic + group, "auto.offset.reset", policy)) {
            consumer.subscribe(Collections.singletonList(topic));
            return first(consumer, nudge);
        }
    }

    private String reset() throws Exception {
        TopicPartition where = new TopicPartition(topic, 0);
        int start = RESET_START + 2;
        try (Admin admin = client()) {
            check(admin.deleteRecords(Collections.singletonMap(
                where, RecordsToDelete.beforeOffset(start))).lowWatermarks().get(where).get()
                .lowWatermark() == start, "another low watermark");
        }
        long offset = first("-early", "earliest", () -> { });
        check(offset == start, "earliest is " + offset + ", not " + start);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(null)) {
            consumer.assign(Collections.singletonList(where));
            consumer.seek(where, 0);
            offset = first(consumer, () -> { });
            check(offset == start, "out of range goes to " + offset + ", not " + start);
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(null, "auto.offset.reset", "none")) {
            consumer.assign(Collections.singletonList(where));
            consumer.seek(where, RESET_END + 100);
            first(consumer, () -> { });
            throw new AssertionError("a read beyond the end without a policy");
        } catch (OffsetOutOfRangeException expected) {
            check(expected.offsetOutOfRangePartitions().containsKey(where), "another partition");
        }
        offset = first("-late", "latest", () -> produce("late", 1, "none", 0));
        check(offset >= RESET_END, "latest is " + offset + ", below " + RESET_END);
        return "earliest, latest, none, out of range, delete records";
    }

    private Admin client() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        secure(settings);
        return Admin.create(settings);
    }

    private String topics() throws Exception {
        String name = topic + "-made";
        try (Admin admin = client()) {
            admin.createTopics(Collections.singletonList(new NewTopic(name, 3, (short) 1)))
                .all().get();
            check(partitionCount(admin, name) == 3, "not three partitions");
            admin.createPartitions(Collections.singletonMap(name, NewPartitions.increaseTo(5)))
                .all().get();
            check(partitionCount(admin, name) == 5, "not five partitions");
            admin.deleteTopics(Collections.singletonList(name)).all().get();
            waitFor("the topic to be gone", () -> {
                try {
                    return !admin.listTopics().names().get().contains(name);
                } catch (Exception failure) {
                    throw new AssertionError(failure);
                }
            });
        }
        return "create, describe, delete, add partitions";
    }

    private static String config(Admin admin, ConfigResource.Type type, String name, String key)
            throws Exception {
        ConfigResource resource = new ConfigResource(type, name);
        return admin.describeConfigs(Collections.singletonList(resource)).all().get()
            .get(resource).get(key).value();
    }

    private String configs() throws Exception {
        try (Admin admin = client()) {
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            admin.incrementalAlterConfigs(Collections.singletonMap(resource, Arrays.asList(
                new AlterConfigOp(new ConfigEntry("retention.ms", "4711000"),
                    AlterConfigOp.OpType.SET),
                new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"),
                    AlterConfigOp.OpType.APPEND)))).all().get();
            String value = config(admin, ConfigResource.Type.TOPIC, topic, "retention.ms");
            check("4711000".equals(value), "retention.ms is " + value);
            value = config(admin, ConfigResource.Type.TOPIC, topic, "cleanup.policy");
            check("delete,compact".equals(value), "cleanup.policy is " + value);
            value = config(admin, ConfigResource.Type.BROKER, "1", "node.id");
            check("1".equals(value), "node.id is " + value);
            check(admin.describeCluster().nodes().get().size() == 1, "not one node");
            check(!admin.describeLogDirs(Collections.singletonList(1)).descriptions().get(1).get()
                .isEmpty(), "no log directory");
        }
        return "describe, alter";
    }

    private String groups() throws Exception {
        String group = topic + "-group";
        TopicPartition where = new TopicPartition(topic, 0);
        produce("groups", 30, "none", 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(group, "max.poll.records", "10")) {
            consumer.subscribe(Collections.singletonList(topic));
            take(consumer, 10);
            consumer.commitSync(Collections.singletonMap(
                where, new OffsetAndMetadata(10, "a note")));
        }
        try (Admin admin = client()) {
            check(listed(admin, group), "the group is not listed");
            String state = String.valueOf(admin.describeConsumerGroups(
                Collections.singletonList(group)).all().get().get(group).state());
            check("empty".equalsIgnoreCase(state), "its state is " + state);
            OffsetAndMetadata committed = committed(admin, group, where);
            check(committed.offset() == 10 && "a note".equals(committed.metadata()),
                "committed is " + committed);
            admin.alterConsumerGroupOffsets(group,
                Collections.singletonMap(where, new OffsetAndMetadata(4))).all().get();
            committed = committed(admin, group, where);
            check(committed.offset() == 4, "committed is " + committed);
            admin.deleteConsumerGroupOffsets(group, Collections.singleton(where)).all().get();
            check(committed(admin, group, where) == null, "a deleted offset is told");
            admin.deleteConsumerGroups(Collections.singletonList(group)).all().get();
            check(!listed(admin, group), "a deleted group is listed");
        }
        return "list, describe, offsets, alter, delete";
    }

    private static boolean listed(Admin admin, String group) throws Exception {
        return admin.listConsumerGroups().all().get().stream()
            .anyMatch(one -> one.groupId().equals(group));
    }

    private static OffsetAndMetadata committed(Admin admin, String group, TopicPartition where)
            throws Exception {
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
            .get(where);
    }

    /** The result's accessor was renamed in 3.1, and the old name was removed in 4.0. */
    private static int partitionCount(Admin admin, String name) throws Exception {
        Object result = admin.describeTopics(Collections.singletonList(name));
        Object futures;
        try {
            futures = result.getClass().getMethod("topicNameValues").invoke(result);
        } catch (NoSuchMethodException older) {
            futures = result.getClass().getMethod("values").invoke(result);
        }
        Object described = ((org.apache.kafka.common.KafkaFuture<?>)
            ((Map<?, ?>) futures).get(name)).get();
        return ((org.apache.kafka.clients.admin.TopicDescription) described).partitions().size();
    }
}
