package peerd.bridge;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/**
 * The connection over which the results of one run leave this process.
 *
 * <p>Frames, all numbers little endian: {@code length:u32 kind:u8 payload}. The first is HELLO with the name of the run;
 * then ROWS with an Arrow stream; MARK and FILES with {@code input:i32 number:i64}: the numbered input and all before it
 * of that source are done with, or all files of that input up to one are.
 */
final class ResultChannel {
  private static final byte HELLO = 0;
  private static final byte ROWS = 1;
  private static final byte MARK = 2;
  private static final byte FILES = 3;
  private static final int HEADER_BYTES = 5;

  private static final ConcurrentMap<String, ResultChannel> CHANNELS = new ConcurrentHashMap<>();

  private final SocketChannel channel;

  private ResultChannel(String socket, String run) throws IOException {
    channel = SocketChannel.open(StandardProtocolFamily.UNIX);
    channel.connect(UnixDomainSocketAddress.of(socket));
    byte[] name = run.getBytes(StandardCharsets.UTF_8);
    send(HELLO, name, name.length);
  }

  /** One connection for all tasks of a run in this process. */
  static ResultChannel to(String socket, String run) {
    return CHANNELS.computeIfAbsent(
        run,
        unused -> {
          try {
            return new ResultChannel(socket, run);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        });
  }

  /** Called by the worker when a run has ended. */
  public static void close(String run) throws IOException {
    ResultChannel closed = CHANNELS.remove(run);
    if (closed != null) {
      closed.channel.close();
    }
  }

  void sendRows(byte[] rows, int length) throws IOException {
    send(ROWS, rows, length);
  }

  void sendMark(int input, long number) throws IOException {
    sendPlace(MARK, input, number);
  }

  void sendFiles(int input, long file) throws IOException {
    sendPlace(FILES, input, file);
  }

  private void sendPlace(byte kind, int input, long number) throws IOException {
    ByteBuffer place = ByteBuffer.allocate(Integer.BYTES + Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
    send(kind, place.putInt(input).putLong(number).array(), place.capacity());
  }

  private synchronized void send(byte kind, byte[] payload, int length) throws IOException {
    ByteBuffer frame = ByteBuffer.allocate(HEADER_BYTES + length).order(ByteOrder.LITTLE_ENDIAN);
    frame.putInt(1 + length).put(kind).put(payload, 0, length).flip();
    while (frame.hasRemaining()) {
      channel.write(frame);
    }
  }
}
