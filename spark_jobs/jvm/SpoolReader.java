package peerd.bridge;

import java.io.ByteArrayInputStream;
import java.io.Closeable;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import peerd.bridge.SpoolStream.SpoolOffset;
import peerd.bridge.SpoolStream.SpoolPartition;
import peerd.bridge.SpoolStream.SpoolPlace;

/** Reads files of a spool in a task: the record batches of one after the other. */
abstract class SpoolReader implements Closeable {
  final SpoolPartition partition;
  final Spool spool; // Null where the partition brings its files along.
  long file; // The one being read; nothing of it is read yet while it is the one the partition starts behind.
  ColumnarBatch batch;
  private final BufferAllocator allocator;
  private ArrowStreamReader reader;

  SpoolReader(SpoolPartition partition) {
    this.partition = partition;
    spool = partition.files() == null ? new Spool(partition.run(), partition.input()) : null;
    file = partition.start().file();
    allocator = ArrowUtils.rootAllocator().newChildAllocator("spool", 0, Long.MAX_VALUE);
  }

  void openNextFile() throws IOException {
    closeFile();
    file++;
    byte[] bytes = spool == null ? partition.files()[(int) (file - partition.start().file() - 1)] : spool.read(file);
    reader = bytes == null ? null : new ArrowStreamReader(new ByteArrayInputStream(bytes), allocator);
  }

  /** The next record batch of the open file; false at its end. */
  boolean nextBatch() throws IOException {
    if (reader == null || !reader.loadNextBatch()) {
      closeFile();
      return false;
    }
    VectorSchemaRoot root = reader.getVectorSchemaRoot();
    ColumnVector[] columns =
        root.getFieldVectors().stream().map(ArrowColumnVector::new).toArray(ColumnVector[]::new);
    batch = new ColumnarBatch(columns, root.getRowCount());
    return true;
  }

  private void closeFile() throws IOException {
    if (reader != null) {
      reader.close();
      reader = null;
    }
  }

  @Override
  public void close() throws IOException {
    closeFile();
    allocator.close();
  }

  record Factory(boolean isRealTime) implements PartitionReaderFactory {
    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return !isRealTime;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return new Rows((SpoolPartition) partition);
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return new Batches((SpoolPartition) partition);
    }
  }

  /** What a micro-batch reads: the files between two offsets, whole. */
  private static final class Batches extends SpoolReader implements PartitionReader<ColumnarBatch> {
    Batches(SpoolPartition partition) {
      super(partition);
    }

    @Override
    public boolean next() throws IOException {
      while (!nextBatch()) {
        if (file == partition.end()) {
          return false;
        }
        openNextFile();
      }
      return true;
    }

    @Override
    public ColumnarBatch get() {
      return batch;
    }
  }

  /** What real-time mode reads: row after row for as long as the task is to run, waiting for files to come. */
  private static final class Rows extends SpoolReader implements SupportsRealTimeRead<InternalRow> {
    private long behind; // Rows of the file that have been given out.
    private int row = -1; // In the batch.

    Rows(SpoolPartition partition) {
      super(partition);
      try {
        if (partition.start().row() > 0) { // The task before this one ended within a file.
          openNextFile();
          while (behind < partition.start().row() && nextRow()) {}
        }
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    @Override
    public boolean next() throws IOException {
      throw new UnsupportedOperationException("rows are read with a timeout");
    }

    @Override
    public RecordStatus nextWithTimeout(Long timeoutMs) throws IOException {
      long since = System.nanoTime();
      while (!nextRow()) {
        if (spool.head() > file) {
          openNextFile();
          behind = 0;
        } else if (System.nanoTime() - since >= timeoutMs * 1_000_000) {
          return RecordStatus.newStatusWithoutArrivalTime(false);
        } else if (Thread.currentThread().isInterrupted()) {
          throw new InterruptedIOException("the run was stopped");
        } else {
          Spool.park(since);
        }
      }
      return RecordStatus.newStatusWithoutArrivalTime(true);
    }

    private boolean nextRow() throws IOException {
      while (batch == null || row + 1 == batch.numRows()) {
        row = -1;
        batch = null;
        if (!nextBatch()) {
          return false;
        }
      }
      row++;
      behind++;
      return true;
    }

    @Override
    public InternalRow get() {
      return batch.getRow(row);
    }

    @Override
    public PartitionOffset getOffset() {
      try {
        boolean isWithin = batch != null && (row + 1 < batch.numRows() || nextBatch());
        return new SpoolPlace(isWithin ? new SpoolOffset(file - 1, behind) : new SpoolOffset(file, 0));
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }
  }
}
