package peerd.bridge;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.channels.Channels;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;

/**
 * Writes the results of one task: the rows, and marks behind the rows that they speak of.
 *
 * <p>A task of this process sends them itself. One of a cluster hands them to the driver as it commits: Spark counts one
 * commit for each task, however often it was tried, and the driver says the end of a round behind all of them.
 *
 * <p>A row with a key is the newest state of a group that may change still: it stays here, replaced by what comes after
 * it, until a mark says that its window has ended, or the task ends. So a group of many rows costs the daemon one.
 */
final class ResultWriter implements DataWriter<InternalRow> {
  private static final int ROWS_MAX = 4096; // In one frame: the daemon takes it in one go, and has other things to do.
  private static final int HELD_MAX = 200_000; // Groups held back.

  private final ResultChannel channel; // Null: the rows go with the word that the task is done, to the driver.
  private final List<byte[]> parcel = new ArrayList<>();
  private final BufferAllocator allocator;
  private final VectorSchemaRoot root;
  private final ArrowWriter writer;
  private final int number;
  private final int mark;
  private final int due;
  private final int key;
  private final int keyFields;
  private int rows;

  private final TreeMap<Long, Map<InternalRow, InternalRow>> held = new TreeMap<>(); // By when they are due, by key.
  private int heldCount;
  private long reached = Long.MIN_VALUE; // Windows that end by then get no more rows.

  ResultWriter(StructType schema, ResultChannel channel) {
    this.channel = channel;
    number = schema.fieldIndex("number");
    mark = schema.fieldIndex("mark");
    due = schema.fieldIndex("due");
    key = schema.fieldIndex("key");
    keyFields = schema.fields()[key].dataType() instanceof StructType fields ? fields.size() : 0;
    allocator = ArrowUtils.rootAllocator().newChildAllocator("results", 0, Long.MAX_VALUE);
    root = VectorSchemaRoot.create(ArrowUtils.toArrowSchema(schema, "UTC", true), allocator);
    writer = ArrowWriter.create(root);
  }

  @Override
  public void write(InternalRow row) throws IOException {
    int input = row.getInt(mark);
    if (input >= 0) {
      if (!row.isNullAt(due)) {
        reached = Math.max(reached, row.getLong(due));
      }
      release(reached);
      flush();
      channel.sendMark(input, row.getLong(number));
    } else if (row.isNullAt(key)) {
      add(row);
    } else {
      hold(row.copy());
    }
  }

  private void hold(InternalRow row) throws IOException {
    Map<InternalRow, InternalRow> groups = held.computeIfAbsent(row.getLong(due), unused -> new HashMap<>());
    if (groups.put(row.getStruct(key, keyFields), row) == null && ++heldCount > HELD_MAX) {
      release(Long.MAX_VALUE);
    }
  }

  private void release(long upto) throws IOException {
    while (!held.isEmpty() && held.firstKey() <= upto) {
      Map<InternalRow, InternalRow> groups = held.pollFirstEntry().getValue();
      heldCount -= groups.size();
      for (InternalRow row : groups.values()) {
        add(row);
      }
    }
  }

  private void add(InternalRow row) throws IOException {
    writer.write(row);
    if (++rows == ROWS_MAX) {
      flush();
    }
  }

  private void flush() throws IOException {
    if (rows == 0) {
      return;
    }
    writer.finish();
    Bytes bytes = new Bytes();
    try (ArrowStreamWriter stream = new ArrowStreamWriter(root, null, Channels.newChannel(bytes))) {
      stream.start();
      stream.writeBatch();
      stream.end();
    }
    writer.reset();
    rows = 0;
    if (channel == null) {
      parcel.add(bytes.toByteArray());
    } else {
      channel.sendRows(bytes.array(), bytes.size());
    }
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    release(Long.MAX_VALUE);
    flush();
    return new Done(parcel.toArray(byte[][]::new));
  }

  @Override
  public void abort() {}

  @Override
  public void close() {
    root.close();
    allocator.close();
  }

  /** A task is done; these are the rows that it has not sent itself, in frames. */
  record Done(byte[][] frames) implements WriterCommitMessage {}

  /** Lets a frame be sent without the copy that toByteArray makes. */
  private static final class Bytes extends ByteArrayOutputStream {
    Bytes() {
      super(8192);
    }

    byte[] array() {
      return buf;
    }
  }
}
