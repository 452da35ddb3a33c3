import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** Hadoop's own YARN of one resource manager and two node managers in one process; writes yarn-site.xml into a folder. */
public class MiniYarn {
    public static void main(String[] arguments) throws Exception {
        Configuration conf = new YarnConfiguration();
        conf.set("fs.defaultFS", "file:///");
        conf.set("yarn.nodemanager.resource.memory-mb", "4096");
        conf.set("yarn.nodemanager.resource.cpu-vcores", "2");
        conf.set("yarn.scheduler.minimum-allocation-mb", "256");
        conf.set("yarn.nodemanager.disk-health-checker.enable", "false");
        conf.set("yarn.resourcemanager.scheduler.class",
            "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler");
        MiniYARNCluster yarn = new MiniYARNCluster("yarn", 2, 1, 1);
        yarn.init(conf);
        yarn.start();
        try (OutputStream out = new FileOutputStream(new File(arguments[0], "yarn-site.xml"))) {
            yarn.getConfig().writeXml(out);
        }
        System.out.println("MiniYarn is up");
        Thread.currentThread().join();
    }
}
