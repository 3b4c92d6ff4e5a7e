package peerd.bridge;

import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.IntStream;

/**
 * How far each input of a run is read in the round under way: a micro-batch, or a batch job over all that is there. The
 * sink tells it to the daemon once the round is over.
 */
public final class Rounds {
  private static final long LINGER_NS = 2_000_000; // For rows of other inputs that come with these.

  private static final ConcurrentMap<String, Rounds> BY_RUN = new ConcurrentHashMap<>();

  private final Spool[] spools;
  private final long[] ends;
  private long[] done; // As of the round before.

  private Rounds(String run, int inputs) {
    spools = IntStream.range(0, inputs).mapToObj(input -> new Spool(run, input)).toArray(Spool[]::new);
    ends = new long[inputs];
    done = new long[inputs];
  }

  static Rounds of(String run, int inputs) {
    return BY_RUN.computeIfAbsent(run, unused -> new Rounds(run, inputs));
  }

  /** Those of a run that has begun. */
  static Rounds of(String run) {
    return BY_RUN.get(run);
  }

  /** Begin a round over all that is there, once something new is; called by the worker. False: nothing came in time. */
  public static boolean begin(String run, int inputs, long timeoutMs) {
    Rounds rounds = of(run, inputs);
    if (!rounds.waitForRows(timeoutMs)) {
      return false;
    }
    for (int input = 0; input < inputs; input++) {
      rounds.extend(input);
    }
    return true;
  }

  /** Called by the worker when a run has ended. */
  public static void forget(String run) {
    BY_RUN.remove(run);
  }

  /** Block while no input has rows that no round has read, so that an idle run costs next to nothing. */
  boolean waitForRows(long timeoutMs) {
    if (hasRows()) {
      return true;
    }
    long since = System.nanoTime();
    while (!hasRows()) {
      if (System.nanoTime() - since > timeoutMs * 1_000_000 || Thread.currentThread().isInterrupted()) {
        return false;
      }
      Spool.park(since);
    }
    LockSupport.parkNanos(LINGER_NS);
    return true;
  }

  private boolean hasRows() {
    return IntStream.range(0, ends.length).anyMatch(input -> spools[input].head() > done[input]);
  }

  /** Let the round read an input as far as it goes. */
  long extend(int input) {
    ends[input] = spools[input].head();
    return ends[input];
  }

  long end(int input) {
    return ends[input];
  }

  /** The round is over: how far each input has been read. */
  long[] finish() {
    done = ends.clone();
    return done;
  }
}
