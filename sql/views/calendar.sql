-- One row: today (UTC), and the days 7, 30 and 365 days before it, for queries about a time up to now.
CREATE VIEW calendar AS
SELECT {{ days_ago(0) }} AS today,
       {{ days_ago(7) }} AS week_ago,
       {{ days_ago(30) }} AS month_ago,
       {{ days_ago(365) }} AS year_ago
