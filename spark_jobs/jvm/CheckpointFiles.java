package peerd.bridge;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;
import org.apache.spark.util.ShutdownHookManager;

/**
 * Spark's notes about a run as plain files of a local folder. Spark's own way starts a process for every file to set its
 * permissions, which takes longer than a small batch. Nothing is synced: a run never outlives this process.
 */
public final class CheckpointFiles extends FileSystemBasedCheckpointFileManager {
  private static final String PEER_FOLDER = "peerd-spark-"; // What the name of a peer's folder begins with,
  private static final String PEER_SOCKET = "results"; // and what is in it only on the peer's own machine.
  private static final Set<PosixFilePermission> OURS_ALONE = PosixFilePermissions.fromString("rwx------");

  public CheckpointFiles(Path path, Configuration configuration) {
    super(path, configuration);
  }

  @Override
  public FSDataOutputStream createTempFile(Path path) {
    try {
      createFolder(local(path).getParent());
      return new FSDataOutputStream(new BufferedOutputStream(Files.newOutputStream(local(path))), null);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  @Override
  public boolean exists(Path path) {
    return Files.exists(local(path));
  }

  @Override
  public void mkdirs(Path path) {
    try {
      createFolder(local(path));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** What has to be made is ours alone. On another machine than the peer's, nobody else removes it. */
  private static void createFolder(java.nio.file.Path folder) throws IOException {
    Files.createDirectories(folder, PosixFilePermissions.asFileAttribute(OURS_ALONE));
    for (java.nio.file.Path each = folder; each.getFileName() != null; each = each.getParent()) {
      if (each.getFileName().toString().startsWith(PEER_FOLDER) && !Files.exists(each.resolve(PEER_SOCKET))) {
        ShutdownHookManager.registerShutdownDeleteDir(each.toFile());
      }
    }
  }

  private static java.nio.file.Path local(Path path) {
    return Paths.get(path.toUri().getPath());
  }
}
