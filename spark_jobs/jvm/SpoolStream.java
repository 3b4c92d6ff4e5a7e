package peerd.bridge;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;

/**
 * One input of a run as Spark's driver sees it. An offset is how many files are behind it, and in real-time mode how
 * many rows of the next one.
 */
final class SpoolStream implements MicroBatchStream, SupportsAdmissionControl, SupportsRealTimeMode {
  private static final long WAIT_MS = 1000; // How long the driver waits here for rows before it looks around.

  private final String run;
  private final int input;
  private final boolean isRealTime;
  private final Rounds rounds;

  SpoolStream(String run, int input, int inputs, boolean isRealTime) {
    this.run = run;
    this.input = input;
    this.isRealTime = isRealTime;
    rounds = Rounds.of(run, inputs);
  }

  @Override
  public Offset initialOffset() {
    return new SpoolOffset(0, 0);
  }

  @Override
  public Offset deserializeOffset(String json) {
    return SpoolOffset.of(json);
  }

  @Override
  public Offset latestOffset() {
    throw new IllegalStateException("Spark asks for the latest offset with a limit");
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    rounds.waitForRows(WAIT_MS);
    return new SpoolOffset(rounds.extend(input), 0);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    // One, even of nothing: to Spark all rows are then together already, and it does without a shuffle.
    return new InputPartition[] {SpoolPartition.of(run, input, (SpoolOffset) start, ((SpoolOffset) end).file())};
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start) {
    return new InputPartition[] {new SpoolPartition(run, input, (SpoolOffset) start, Long.MAX_VALUE, null)};
  }

  @Override
  public Offset mergeOffsets(PartitionOffset[] offsets) {
    return ((SpoolPlace) offsets[0]).offset();
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new SpoolReader.Factory(isRealTime);
  }

  @Override
  public void commit(Offset end) {} // The daemon removes files: it knows first when they are done with.

  @Override
  public void stop() {}

  /** So many files, and so many rows of the next one, are behind this offset. */
  static final class SpoolOffset extends Offset implements java.io.Serializable {
    private final long file;
    private final long row;

    SpoolOffset(long file, long row) {
      this.file = file;
      this.row = row;
    }

    static SpoolOffset of(String json) {
      String[] parts = json.split("\\.");
      return new SpoolOffset(Long.parseLong(parts[0]), Long.parseLong(parts[1]));
    }

    long file() {
      return file;
    }

    long row() {
      return row;
    }

    @Override
    public String json() {
      return file + "." + row;
    }
  }

  record SpoolPlace(SpoolOffset offset) implements PartitionOffset {}

  /**
   * The files between two offsets. A task of this process reads them itself; one of a cluster, which may be on another
   * machine, brings them along, with null for one that is gone: a task that is tried again reads the same.
   */
  record SpoolPartition(String run, int input, SpoolOffset start, long end, byte[][] files)
      implements InputPartition {
    static SpoolPartition of(String run, int input, SpoolOffset start, long end) {
      boolean isLocal = SparkContext.getOrCreate().isLocal();
      return new SpoolPartition(run, input, start, end, isLocal ? null : files(run, input, start, end));
    }

    private static byte[][] files(String run, int input, SpoolOffset start, long end) {
      Spool spool = new Spool(run, input);
      byte[][] files = new byte[Math.toIntExact(end - start.file())][];
      try {
        for (int place = 0; place < files.length; place++) {
          files[place] = spool.read(start.file() + 1 + place);
        }
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
      return files;
    }
  }
}
