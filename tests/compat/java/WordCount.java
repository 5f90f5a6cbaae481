import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * A word count. "streams": at least once; runs, stops and starts again with an empty state folder,
 * so that the second run restores its counts from the changelog topic. "exactly-once": runs until
 * it is killed, and writes every count of every word.
 */
public final class WordCount {
    /** "streams": a Streams group (KIP-1071). */
    private static final String PROTOCOL = System.getProperty("group.protocol", "classic");
    private static final boolean STREAMS_PROTOCOL = PROTOCOL.equals("streams");

    private final String bootstrap;
    private final String topic;

    private WordCount(String bootstrap, String topic) {
        this.bootstrap = bootstrap;
        this.topic = topic;
    }

    public static void main(String[] arguments) {
        try {
            WordCount count = new WordCount(arguments[0], arguments[2]);
            if (arguments[1].equals("exactly-once")) {
                count.exactlyOnce().start();
                return;
            }
            count.produce(100);
            count.countUntil(100);
            count.produce(50);
            count.countUntil(150);
            System.out.println("{\"ok\": true, \"note\": \"\"}");
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            String told = failure.toString().replaceAll("[\"\\\\\\p{Cntrl}]", "'");
            System.out.println("{\"ok\": false, \"note\": \"" + told + "\"}");
            System.exit(1);
        }
    }

    private void produce(int lines) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                settings, new StringSerializer(), new StringSerializer())) {
            for (int line = 0; line < lines; line++) {
                producer.send(new ProducerRecord<>(topic, "line" + line, "all words are words"));
            }
        }
    }

    /** All files of a process are in its working directory. */
    private KafkaStreams exactlyOnce() {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(topic, Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .to(topic + "-goal", Produced.with(Serdes.String(), Serdes.Long()));
        Properties settings = new Properties();
        settings.put("application.id", topic + "-app");
        settings.put("bootstrap.servers", bootstrap);
        settings.put("commit.interval.ms", "100");
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("auto.offset.reset", "earliest");
        settings.put("replication.factor", "1");
        settings.put("statestore.cache.max.bytes", "0");
        if (!STREAMS_PROTOCOL) {
            settings.put("session.timeout.ms", "6000");
        }
        settings.put("max.poll.records", "50");
        settings.put("producer.transaction.timeout.ms", "5000");
        settings.put("state.dir", "state");
        settings.put("group.protocol", PROTOCOL);
        return new KafkaStreams(builder.build(), settings);
    }

    private KafkaStreams streams() throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(topic, Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.with(Serdes.String(), Serdes.Long()))
            .toStream()
            .to(topic + "-counts", Produced.with(Serdes.String(), Serdes.Long()));
        Properties settings = new Properties();
        settings.put("application.id", topic + "-app");
        settings.put("bootstrap.servers", bootstrap);
        settings.put("commit.interval.ms", "500");
        settings.put("processing.guarantee", "at_least_once");
        settings.put("auto.offset.reset", "earliest");
        settings.put("replication.factor", "1");
        settings.put("state.dir",
            java.nio.file.Files.createTempDirectory("wordcount").toString());
        settings.put("group.protocol", PROTOCOL);
        return new KafkaStreams(builder.build(), settings);
    }

    /** Runs the application until each word has the count of `lines` lines. */
    private void countUntil(long lines) throws Exception {
        KafkaStreams streams = streams();
        streams.start();
        try {
            Map<String, Long> counts = new HashMap<>();
            long endMs = System.currentTimeMillis() + 90_000;
            try (KafkaConsumer<String, Long> consumer = reader()) {
                while (!(counts.getOrDefault("all", 0L) >= lines
                        && counts.getOrDefault("are", 0L) >= lines
                        && counts.getOrDefault("words", 0L) >= 2 * lines)) {
                    if (System.currentTimeMillis() > endMs) {
                        throw new AssertionError(
                            "after 90 s, state " + streams.state() + ", counts " + counts);
                    }
                    for (ConsumerRecord<String, Long> row : consumer.poll(Duration.ofMillis(500))) {
                        counts.put(row.key(), row.value());
                    }
                }
            }
            Map<String, Long> wanted = new HashMap<>();
            wanted.put("all", lines);
            wanted.put("are", lines);
            wanted.put("words", 2 * lines);
            if (!counts.equals(wanted)) {
                throw new AssertionError("counts " + counts + ", not " + wanted);
            }
        } finally {
            streams.close(Duration.ofSeconds(30));
        }
    }

    private KafkaConsumer<String, Long> reader() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("auto.offset.reset", "earliest");
        KafkaConsumer<String, Long> consumer = new KafkaConsumer<>(
            settings, new StringDeserializer(), new LongDeserializer());
        consumer.assign(Collections.singletonList(new TopicPartition(topic + "-counts", 0)));
        consumer.seekToBeginning(consumer.assignment());
        return consumer;
    }
}
