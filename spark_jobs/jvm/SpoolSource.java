package peerd.bridge;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import peerd.bridge.SpoolStream.SpoolOffset;
import peerd.bridge.SpoolStream.SpoolPartition;

/**
 * A source of Spark that reads one input of one run from its spool.
 *
 * <p>Options: {@code path}, the folder of the run; {@code input}, the number of the input, whose files are in the folder
 * of that name; {@code inputs}, how many inputs the run has; {@code realTime}, whether rows are read one by one.
 */
public final class SpoolSource implements TableProvider {
  @Override
  public boolean supportsExternalMetadata() {
    return true; // The schema comes with the query: a spool may be empty when it starts.
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    throw new IllegalArgumentException("a spool is read with the schema it was written with");
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new SpoolTable(schema, new CaseInsensitiveStringMap(properties));
  }

  private record SpoolTable(StructType schema, CaseInsensitiveStringMap options) implements Table, SupportsRead {
    @Override
    public String name() {
      return "spool";
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.MICRO_BATCH_READ, TableCapability.BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap scanOptions) {
      return () -> new SpoolScan(schema, options);
    }
  }

  private record SpoolScan(StructType readSchema, CaseInsensitiveStringMap options) implements Scan {
    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
      return new SpoolStream(
          options.get("path"), options.getInt("input", 0), options.getInt("inputs", 1), isRealTime());
    }

    /** A job over all that the round reads. */
    @Override
    public Batch toBatch() {
      String run = options.get("path");
      int input = options.getInt("input", 0);
      return new Batch() {
        @Override
        public InputPartition[] planInputPartitions() {
          long end = Rounds.of(run).end(input);
          return new InputPartition[] {SpoolPartition.of(run, input, new SpoolOffset(0, 0), end)};
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
          return new SpoolReader.Factory(false);
        }
      };
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
      return isRealTime() ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
    }

    private boolean isRealTime() {
      return options.getBoolean("realTime", false);
    }
  }
}
