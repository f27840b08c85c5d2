-- Part of a SELECT: a JSON column as text; null where making the text could take gigabytes.
--
-- A number of 131,072 digits before the point and 16,383 behind it is stored in a dozen bytes. No program reads an
-- integer of more than 4,300 digits, so a value with one is not made into text. Looking for one takes twice as long as
-- making the text does, so it is left out where the value has no more than 4 kB, unpacked; and so are the digits behind
-- the point up to 256 kB: the text is smaller than 400 MB then. The division is where those show: 1 with that many
-- digits behind the point, divided by 3 and multiplied by it, is as far from 1 as the last digit, up to the thousandth.
-- Identifiers: table, column.
CASE
    WHEN pg_column_size({table}.{column}) <= 4000 AND pg_column_compression({table}.{column}) IS NULL
        THEN {table}.{column}::text
    WHEN {table}.{column} IS NULL THEN NULL
    ELSE (
        SELECT
            CASE
                WHEN pg_column_size(unpacked.value) <= 4000 THEN unpacked.value::text
                WHEN jsonb_path_exists(unpacked.value, 'strict $.** ? (@.abs() >= 1e4300)') THEN NULL
                WHEN pg_column_size(unpacked.value) > 262144
                    AND jsonb_path_exists(unpacked.value, 'strict $.** ? (1 - (@ * 0 + 1) / 3 * 3 < 1e-900)')
                    THEN NULL
                ELSE unpacked.value::text
            END
        FROM (SELECT jsonb_path_query_first({table}.{column}, 'strict $') AS value OFFSET 0) AS unpacked
    )
END
