import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** What Kafka's own MirrorClient reads on a target: one "name value" a line. Arguments: servers, source alias, group. */
public class MirrorClientCheck {
    public static void main(String[] args) throws Exception {
        Map<String, Object> properties = new HashMap<>();
        properties.put("bootstrap.servers", args[0]);
        System.out.println("heartbeats " + new TreeSet<>(RemoteClusterUtils.heartbeatTopics(properties)));
        System.out.println("checkpoints " + new TreeSet<>(RemoteClusterUtils.checkpointTopics(properties)));
        System.out.println("upstream " + new TreeSet<>(RemoteClusterUtils.upstreamClusters(properties)));
        System.out.println("hops " + RemoteClusterUtils.replicationHops(properties, args[1]));
        Map<String, String> offsets = new TreeMap<>();
        RemoteClusterUtils.translateOffsets(properties, args[1], args[2], Duration.ofSeconds(20))
                .forEach((partition, offset) -> offsets.put(partition.toString(), offset.offset() + "/" + offset.metadata()));
        System.out.println("offsets " + offsets);
    }
}
