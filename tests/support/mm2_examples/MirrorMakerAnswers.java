package org.apache.kafka.connect.mirror;

import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.common.utils.Utils;

/**
 * What MirrorMaker 2 makes of configuration files: one line of JSON for each pair of clusters that it would start.
 * kafka_4_2_answers.json was made with it from files made at random:
 * javac -cp "$KAFKA/*" -d out MirrorMakerAnswers.java
 * java -cp "out:$KAFKA/*" org.apache.kafka.connect.mirror.MirrorMakerAnswers FILE...
 */
public class MirrorMakerAnswers {
    public static void main(String[] files) throws Exception {
        for (String file : files) {
            Properties properties = Utils.loadProps(file);
            MirrorMakerConfig config = new MirrorMakerConfig(Utils.propsToStringMap(properties));
            for (SourceAndTarget pair : config.clusterPairs()) {
                Map<String, String> base = config.transform(config.connectorBaseConfig(pair, MirrorSourceConnector.class));
                MirrorSourceConfig source = new MirrorSourceConfig(base);
                MirrorCheckpointConfig checkpoint = new MirrorCheckpointConfig(base);
                MirrorHeartbeatConfig heartbeat = new MirrorHeartbeatConfig(base);
                Map<String, Object> flow = new TreeMap<>();
                flow.put("enabled", source.enabled());
                flow.put("source_alias", source.sourceClusterAlias());
                flow.put("target_alias", source.targetClusterAlias());
                flow.put("remote", source.replicationPolicy().formatRemoteTopic(source.sourceClusterAlias(), "t"));
                flow.put("checkpoints", source.checkpointsTopic());
                flow.put("rf", source.replicationFactor());
                flow.put("crf", checkpoint.checkpointsTopicReplicationFactor());
                flow.put("hrf", heartbeat.heartbeatsTopicReplicationFactor());
                flow.put("refresh_topics", source.refreshTopicsInterval().getSeconds());
                flow.put("configs", source.syncTopicConfigsInterval().getSeconds());
                flow.put("acls", source.syncTopicAclsInterval().getSeconds());
                flow.put("refresh_groups", checkpoint.refreshGroupsInterval().getSeconds());
                flow.put("emit_checkpoints", checkpoint.emitCheckpointsInterval().getSeconds());
                flow.put("sync_groups", checkpoint.syncGroupOffsetsInterval().getSeconds());
                flow.put("heartbeats", heartbeat.emitHeartbeatsInterval().getSeconds());
                flow.put("copies_heartbeats", source.heartbeatsReplicationEnabled());
                flow.put("tasks", source.getInt("tasks.max"));
                for (String list : new String[] {"topics", "topics.exclude"})
                    if (base.containsKey(list))
                        flow.put(list, String.join("|", source.getList(list)));
                for (String list : new String[] {"groups", "groups.exclude"})
                    if (base.containsKey(list))
                        flow.put(list, String.join("|", checkpoint.getList(list)));
                System.out.println("{\"file\":" + quoted(file) + ",\"pair\":" + quoted(pair) + ",\"flow\":" + json(flow)
                    + ",\"source\":" + json(source.sourceConsumerConfig((String) null))
                    + ",\"target\":" + json(source.targetProducerConfig(null)) + "}");
            }
        }
    }

    private static String json(Map<String, ?> map) {
        StringBuilder text = new StringBuilder();
        new TreeMap<>(map).forEach((key, value) ->
            text.append(text.length() == 0 ? "" : ",").append(quoted(key)).append(":").append(quoted(value)));
        return "{" + text + "}";
    }

    private static String quoted(Object value) {
        return "\"" + value.toString().replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + "\"";
    }
}
