package org.apache.kafka.controller;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.MetadataVersion;

/** Runs Kafka's PartitionChangeBuilder on each input line; prints the record's fields as a line. */
public class PartitionChanges {
    private static List<Integer> list(String text) {
        return text.equals("[]") ? List.of() : Arrays.stream(text.split(","))
            .map(Integer::valueOf).collect(Collectors.toList());
    }

    private static int[] array(String text) {
        return list(text).stream().mapToInt(Integer::intValue).toArray();
    }

    private static String shown(List<Integer> ids) {
        if (ids == null) return "-";
        return ids.isEmpty() ? "[]" : ids.stream().map(String::valueOf)
            .collect(Collectors.joining(","));
    }

    private static Uuid directory(int broker) {
        return new Uuid(7, broker);
    }

    private static PartitionRegistration registration(String[] f) {
        int[] replicas = array(f[0]);
        Uuid[] directories = Arrays.stream(replicas).mapToObj(PartitionChanges::directory)
            .toArray(Uuid[]::new);
        return new PartitionRegistration.Builder().setReplicas(replicas)
            .setDirectories(directories).setIsr(array(f[1])).setRemovingReplicas(array(f[2]))
            .setAddingReplicas(array(f[3])).setElr(array(f[4])).setLastKnownElr(array(f[5]))
            .setLeader(Integer.valueOf(f[6]))
            .setLeaderRecoveryState(LeaderRecoveryState.of(Byte.parseByte(f[7])))
            .setLeaderEpoch(3).setPartitionEpoch(5).build();
    }

    private static String answer(String line) {
        String[] f = line.split(" ");
        Set<Integer> acceptable = Set.copyOf(list(f[10]));
        PartitionChangeBuilder builder = new PartitionChangeBuilder(
            registration(f), new Uuid(1, 2), 0, acceptable::contains,
            MetadataVersion.latestProduction(), Integer.parseInt(f[8]), f[9].equals("1"));
        builder.setElection(PartitionChangeBuilder.Election.valueOf(f[11]));
        builder.setDefaultDirProvider(PartitionChanges::directory);
        if (!f[12].equals("-")) builder.setTargetIsr(list(f[12]));
        if (!f[13].equals("-")) builder.setTargetReplicas(list(f[13]));
        if (!f[14].equals("-")) builder.setTargetRemoving(list(f[14]));
        if (!f[15].equals("-")) builder.setTargetAdding(list(f[15]));
        if (!f[16].equals("-")) builder.setUncleanShutdownReplicas(list(f[16]));
        if (!f[17].equals("-"))
            builder.setTargetLeaderRecoveryState(LeaderRecoveryState.of(Byte.parseByte(f[17])));
        if (!f[18].equals("-"))
            builder.setDirectory(Integer.parseInt(f[18]), new Uuid(9, 9));
        Optional<ApiMessageAndVersion> built = builder.build();
        if (built.isEmpty()) return "none";
        PartitionChangeRecord r = (PartitionChangeRecord) built.get().message();
        String directories = r.directories() == null ? "-" : r.directories().stream()
            .map(id -> id.getMostSignificantBits() + ":" + id.getLeastSignificantBits())
            .collect(Collectors.joining(","));
        return String.join(" ", shown(r.isr()), String.valueOf(r.leader()), shown(r.replicas()),
            shown(r.removingReplicas()), shown(r.addingReplicas()),
            String.valueOf(r.leaderRecoveryState()), shown(r.eligibleLeaderReplicas()),
            shown(r.lastKnownElr()), directories);
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String found;
            try {
                found = answer(line);
            } catch (RuntimeException e) {
                found = "error " + e;
            }
            out.append(found).append('\n');
        }
        System.out.print(out);
    }
}
