import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.compress.GzipCompression;
import org.apache.kafka.common.compress.Lz4Compression;
import org.apache.kafka.common.compress.ZstdCompression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;

/**
 * Reads requests from stdin. 'R', bytes: the records that Kafka's own reader finds in them. 'W', codec,
 * level, values: the batch that Kafka's own writer makes of them. A count of -1 means an error.
 */
public class RecordsEcho {
    public static void main(String[] args) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 20));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 20));
        for (int what = in.read(); what >= 0; what = in.read()) {
            if (what == 'R') {
                read(in, out);
            } else {
                write(in, out);
            }
        }
        out.flush();
    }

    static void read(DataInputStream in, DataOutputStream out) throws IOException {
        java.io.ByteArrayOutputStream made = new java.io.ByteArrayOutputStream();
        DataOutputStream records = new DataOutputStream(made);
        int count = 0;
        try {
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(bytes(in)).batches()) {
                batch.ensureValid();
                for (Record record : batch) {
                    record.ensureValid();
                    records.writeLong(record.offset());
                    records.writeLong(record.timestamp());
                    put(records, record.key());
                    put(records, record.value());
                    records.writeInt(record.headers().length);
                    for (Header header : record.headers()) {
                        put(records, ByteBuffer.wrap(header.key().getBytes("UTF-8")));
                        put(records, header.value() == null ? null : ByteBuffer.wrap(header.value()));
                    }
                    count++;
                }
            }
        } catch (RuntimeException refused) {
            System.err.println(refused);
            count = -1;
        }
        out.writeInt(count);
        if (count >= 0) {
            out.write(made.toByteArray());
        }
    }

    static void write(DataInputStream in, DataOutputStream out) throws IOException {
        int codec = in.readByte();
        int level = in.readInt();
        SimpleRecord[] records = new SimpleRecord[in.readInt()];
        for (int i = 0; i < records.length; i++) {
            byte[] value = new byte[in.readInt()];
            in.readFully(value);
            records[i] = new SimpleRecord(1000 + i, null, value);
        }
        ByteBuffer made = MemoryRecords.withRecords(compression(codec, level), records).buffer();
        put(out, made);
    }

    static Compression compression(int codec, int level) {
        boolean usual = level == Integer.MIN_VALUE;
        switch (codec) {
            case 1: return usual ? Compression.gzip().build() : new GzipCompression.Builder().level(level).build();
            case 2: return Compression.snappy().build();
            case 3: return usual ? Compression.lz4().build() : new Lz4Compression.Builder().level(level).build();
            case 4: return usual ? Compression.zstd().build() : new ZstdCompression.Builder().level(level).build();
            default: return Compression.NONE;
        }
    }

    static ByteBuffer bytes(DataInputStream in) throws IOException {
        byte[] read = new byte[in.readInt()];
        in.readFully(read);
        return ByteBuffer.wrap(read);
    }

    static void put(DataOutputStream out, ByteBuffer bytes) throws IOException {
        if (bytes == null) {
            out.writeInt(-1);
            return;
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        out.writeInt(copy.length);
        out.write(copy);
    }
}
