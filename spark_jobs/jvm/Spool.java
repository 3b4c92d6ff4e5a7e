package peerd.bridge;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.locks.LockSupport;

/**
 * The folder through which rows of one input come: files of Arrow numbered from 1, and HEAD, which says how many there
 * are.
 *
 * <p>The daemon writes a file, then HEAD, and removes a file once its rows have gone through. HEAD is eight bytes that
 * this side has mapped into memory, so looking at it costs nothing.
 */
final class Spool {
  private static final long SHORT_PARK_NS = 200_000;
  private static final long LONG_PARK_NS = 2_000_000;
  private static final long LIVELY_NS = 100_000_000; // For so long after the last rows the next ones are expected soon.

  private final Path folder;
  private final MappedByteBuffer head;

  Spool(String run, int input) {
    folder = Path.of(run, Integer.toString(input));
    try (FileChannel channel = FileChannel.open(folder.resolve("HEAD"), StandardOpenOption.READ)) {
      head = channel.map(FileChannel.MapMode.READ_ONLY, 0, Long.BYTES);
      head.order(ByteOrder.LITTLE_ENDIAN);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  long head() {
    return head.getLong(0);
  }

  /** A whole file; null for one that the daemon has removed, since no result needs it. */
  byte[] read(long file) throws IOException {
    try {
      return Files.readAllBytes(folder.resolve(Long.toString(file)));
    } catch (NoSuchFileException removed) {
      return null;
    }
  }

  /** Sleep for a moment, the longer the longer nothing has come. */
  static void park(long waitingSinceNs) {
    LockSupport.parkNanos(System.nanoTime() - waitingSinceNs < LIVELY_NS ? SHORT_PARK_NS : LONG_PARK_NS);
  }
}
