package peerd.bridge;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import scala.Option;
import scala.PartialFunction;
import scala.collection.immutable.Nil$;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * A rule for Spark's optimizer: a join of streams whose condition never holds has no rows. Spark has it for batches alone.
 * For streams it makes "false" of the whole condition, and then misses the equality that a join of streams must have.
 */
public final class EmptyJoins extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectOptimizerRule(session -> new EmptyJoinsRule());
    return BoxedUnit.UNIT;
  }

  private static final class EmptyJoinsRule extends Rule<LogicalPlan> {
    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      return plan.isStreaming() ? plan.transformDown(PartialFunction.fromFunction(EmptyJoinsRule::replaced)) : plan;
    }

    private static LogicalPlan replaced(LogicalPlan plan) {
      boolean isEmpty =
          plan instanceof Join join
              && join.joinType() == Inner$.MODULE$
              && join.condition().contains(Literal.FalseLiteral());
      if (!isEmpty) {
        return plan;
      }
      return new LocalRelation(plan.output(), emptyList(), plan.isStreaming(), Option.empty());
    }

    @SuppressWarnings("unchecked") // Scala's empty list is one of anything.
    private static <T> scala.collection.immutable.Seq<T> emptyList() {
      return (scala.collection.immutable.Seq<T>) (Object) Nil$.MODULE$;
    }
  }
}
