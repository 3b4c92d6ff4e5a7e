package peerd.bridge;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Spark's notes about a run as plain files of a local folder. Spark's own way starts a process for every file to set its
 * permissions, which takes longer than a small batch. Nothing is synced: a run never outlives this process.
 */
public final class CheckpointFiles extends FileSystemBasedCheckpointFileManager {
  public CheckpointFiles(Path path, Configuration configuration) {
    super(path, configuration);
  }

  @Override
  public FSDataOutputStream createTempFile(Path path) {
    try {
      Files.createDirectories(local(path).getParent());
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
      Files.createDirectories(local(path));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static java.nio.file.Path local(Path path) {
    return Paths.get(path.toUri().getPath());
  }
}
