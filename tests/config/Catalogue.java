import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Prints Kafka's settings as lines of tab-separated fields. Then, for each line "table, name,
 * value" from stdin, prints one line: the value as Kafka parses it, or "!" and its error message.
 * In the table "together" the name is empty and the value contains a topic's settings, name=value
 * separated by semicolons. The table "start" has the same form and tests if a broker with these
 * settings in its file would start.
 */
public class Catalogue {
    public static void main(String[] args) throws Exception {
        ConfigDef broker = (ConfigDef) Class.forName("kafka.server.KafkaConfig")
            .getMethod("configDef").invoke(null);
        ConfigDef topic = LogConfig.configDefCopy();
        Map<String, String> modes = DynamicBrokerConfig.dynamicConfigUpdateModes();
        print("broker", broker, modes);
        print("topic", topic, modes);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t", -1);
            String answer = fields[0].equals("together") ? together(fields[2])
                : fields[0].equals("start") ? start(fields[2])
                : read(fields[0].equals("broker") ? broker : topic, fields[1], fields[2]);
            System.out.println("value\t" + answer);
        }
    }

    private static void print(String table, ConfigDef settings, Map<String, String> modes) {
        for (String name : new TreeSet<>(settings.names())) {
            ConfigDef.ConfigKey key = settings.configKeys().get(name);
            String text = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE ? "<required>"
                : key.defaultValue == null ? "<unset>"
                : ConfigDef.convertToString(key.defaultValue, key.type);
            StringBuilder synonyms = new StringBuilder();
            if (table.equals("topic"))
                for (var synonym : ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS
                        .getOrDefault(name, List.of()))
                    synonyms.append(synonyms.length() > 0 ? "," : "").append(synonym.name());
            System.out.println(String.join("\t", table, name, key.type.toString(), text,
                key.importance.toString(),
                table.equals("topic") ? "" : modes.getOrDefault(name, ""),
                Boolean.toString(key.internalConfig), synonyms));
        }
    }

    private static Map<String, String> parsed(String pairs) {
        Map<String, String> settings = new HashMap<>();
        for (String pair : pairs.split(";")) {
            String[] parts = pair.split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        return settings;
    }

    private static String together(String pairs) {
        try {
            Map<String, Object> defaults = LogConfig.configDefCopy().defaultValues();
            LogConfig.validate(Map.of(), parsed(pairs), defaults, false);
            return "taken";
        } catch (RuntimeException refused) {
            return "!" + refused.getMessage().replaceAll("\\s+", " ");
        }
    }

    private static String start(String pairs) {
        Map<String, String> settings = new HashMap<>(Map.of(
            "process.roles", "broker,controller", "node.id", "1", "log.dirs", "/tmp/no-such-dir",
            "controller.quorum.voters", "1@127.0.0.1:9093",
            "listeners", "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
            "listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names", "CONTROLLER"));
        settings.putAll(parsed(pairs));
        try {
            Properties properties = new Properties();
            properties.putAll(settings);
            new LogConfig(KafkaConfig.fromProps(properties, false).extractLogConfigMap());
            return "taken";
        } catch (RuntimeException refused) {
            return "!" + String.valueOf(refused.getMessage()).replaceAll("\\s+", " ");
        }
    }

    private static String read(ConfigDef settings, String name, String text) {
        ConfigDef.ConfigKey key = settings.configKeys().get(name);
        try {
            Object value = new ConfigDef().define(key).parse(Map.of(name, text)).get(name);
            return value == null ? "<unset>" : ConfigDef.convertToString(value, key.type);
        } catch (RuntimeException refused) {
            return "!" + refused.getMessage().replaceAll("\\s+", " ");
        }
    }
}
