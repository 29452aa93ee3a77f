"""Ask questions of an audit in PySpark: how many messages have which verdict, and which keys are done in the store alone.

python audit.py /var/lib/billing/events redis://localhost:6379/0
"""

import sys

from pyspark.sql import SparkSession

from ackwise.spark import accounts, claims, read_events, verdicts

folder, store = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

verdicts(spark, folder).createOrReplaceTempView("messages")
for row in spark.sql("SELECT verdict, count(*) AS messages FROM messages GROUP BY verdict ORDER BY verdict").collect():
    print(row.verdict, row.messages)

for row in accounts(spark, folder).orderBy("topic", "partition").collect():
    print(f"{row.topic}/{row.partition}: {row.offsets} offsets, {dict(sorted(row.verdicts.items()))}")

failed = read_events(spark, folder).where("event = 'FAILED'")
for row in failed.groupBy("error").count().orderBy("error").collect():
    print(f"{row.error}: failed {row['count']} times")

done = claims(spark, store).where("outcome IS NOT NULL")
unknown = done.join(spark.table("messages"), "dedup_hash", "left_anti")
print("done in the store, and of no event:", unknown.count())
