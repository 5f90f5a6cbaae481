import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.nio.ByteBuffer;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Reads (class name, version, bytes) from stdin. For each it prints the bytes that Kafka's class
 * writes after parsing them, or, without bytes (-1), the bytes of a new object. -1 means rejected.
 */
public class MessageEcho {
    public static void main(String[] args) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 20));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 20));
        while (true) {
            String name;
            try {
                name = in.readUTF();
            } catch (EOFException end) {
                break;
            }
            short version = in.readShort();
            int size = in.readInt();
            Message message = (Message) Class.forName(name).getConstructor().newInstance();
            try {
                if (size >= 0) {
                    byte[] bytes = new byte[size];
                    in.readFully(bytes);
                    message.read(new ByteBufferAccessor(ByteBuffer.wrap(bytes)), version);
                }
                ObjectSerializationCache cache = new ObjectSerializationCache();
                ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
                message.write(new ByteBufferAccessor(written), cache, version);
                out.writeInt(written.position());
                out.write(written.array(), 0, written.position());
            } catch (RuntimeException refused) {
                out.writeInt(-1);
            }
        }
        out.flush();
    }
}
