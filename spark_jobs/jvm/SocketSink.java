package peerd.bridge;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.Set;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A sink of Spark that hands the results of one run to the daemon, over the daemon's Unix socket.
 *
 * <p>Options: {@code socket}; {@code run}, what the daemon knows the results by; {@code path}, the folder of the run;
 * {@code realTime}, whether rows of marks, or else the ends of micro-batches, say which inputs are done with.
 */
public final class SocketSink implements TableProvider {
  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return new StructType();
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new SocketTable(schema, new CaseInsensitiveStringMap(properties));
  }

  private record SocketTable(StructType schema, CaseInsensitiveStringMap options) implements Table, SupportsWrite {
    @Override
    public String name() {
      return "results";
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(
          TableCapability.STREAMING_WRITE, TableCapability.BATCH_WRITE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new Builder(info.schema(), options);
    }
  }

  /** Updates are taken like any other row: the daemon knows which row replaces which. */
  private record Builder(StructType schema, CaseInsensitiveStringMap options)
      implements WriteBuilder, SupportsStreamingUpdateAsAppend {
    @Override
    public Write build() {
      boolean isLocal = SparkContext.getOrCreate().isLocal();
      Results results =
          new Results(schema, options.get("socket"), options.get("run"), options.get("path"), isLocal);
      return new Write() {
        @Override
        public StreamingWrite toStreaming() {
          return new Streaming(results, options.getBoolean("realTime", false));
        }

        @Override
        public BatchWrite toBatch() {
          return new Job(results);
        }
      };
    }
  }

  /** Where the results of a run go, what columns they have, and whether its tasks run in this process. */
  private record Results(StructType schema, String socket, String run, String path, boolean isLocal)
      implements StreamingDataWriterFactory, DataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
      return createWriter(partition, task);
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      return new ResultWriter(schema, isLocal ? channel() : null);
    }

    /** All tasks of a round are done: hand on what they brought, and say how far each input has been read. */
    void endRound(WriterCommitMessage[] messages) {
      try {
        for (WriterCommitMessage message : messages) {
          for (byte[] rows : ((ResultWriter.Done) message).frames()) {
            channel().sendRows(rows, rows.length);
          }
        }
        long[] ends = Rounds.of(path).finish();
        for (int input = 0; input < ends.length; input++) {
          channel().sendFiles(input, ends[input]);
        }
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    private ResultChannel channel() {
      return ResultChannel.to(socket, run);
    }
  }

  private record Streaming(Results results, boolean isRealTime) implements StreamingWrite {
    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
      return results;
    }

    @Override
    public boolean useCommitCoordinator() {
      return false;
    }

    @Override
    public void commit(long epoch, WriterCommitMessage[] messages) {
      if (!isRealTime) {
        results.endRound(messages);
      }
    }

    @Override
    public void abort(long epoch, WriterCommitMessage[] messages) {}
  }

  private record Job(Results results) implements BatchWrite {
    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return results;
    }

    @Override
    public boolean useCommitCoordinator() {
      return false;
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      results.endRound(messages);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {}
  }
}
