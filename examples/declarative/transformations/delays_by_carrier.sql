-- Made anew from the table `flights` at each run, after it: spark-pipelines sees that it reads from there.
CREATE MATERIALIZED VIEW delays_by_carrier AS
SELECT
  carrier,
  count(*) AS flights,
  count(dep_delay) AS departed,
  sum(dep_delay) AS delay_sum,
  round(avg(dep_delay), 1) AS delay_mean
FROM flights
GROUP BY carrier
