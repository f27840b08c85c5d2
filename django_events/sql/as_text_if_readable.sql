-- Part of a SELECT: a JSON column as text; null where making the text could take gigabytes.
--
-- A number of 131,072 digits before the point and 16,383 behind it is stored in a dozen bytes. No program reads an
-- integer of more than 4,300 digits, so a value with one is not made into text. Looking for one takes twice as long as
-- making the text does, so it is left out where the value is small, unpacked; and where it isn't 64 times as large, so
-- are the digits behind the point. What is left out can make 10,000 bytes of text of one, and 1,400.
-- The division is where the digits show: 1 with that many of them, divided by 3 and multiplied by it, is as far from 1
-- as the last one, up to the thousandth.
-- A jsonpath that looks everywhere goes as deep as the value does, and what is 12,000 deep is too deep for the server's
-- stack: that would fail the whole statement, so 5,000 is the end. A list in a list takes 8 bytes at least.
-- Literals: small (bytes), too_deep (a jsonpath to what is deeper). Parts: json (the column).
CASE
    WHEN pg_column_size({json}) <= {small} AND pg_column_compression({json}) IS NULL
        THEN {json}::text
    WHEN {json} IS NULL THEN NULL
    ELSE (
        SELECT
            CASE
                WHEN pg_column_size(unpacked.value) <= {small} THEN unpacked.value::text
                WHEN pg_column_size(unpacked.value) > 40000 AND jsonb_path_exists(unpacked.value, {too_deep}) THEN NULL
                WHEN jsonb_path_exists(unpacked.value, 'strict $.** ? (@.abs() >= 1e4300)') THEN NULL
                WHEN pg_column_size(unpacked.value) > 64 * {small}
                    AND jsonb_path_exists(unpacked.value, 'strict $.** ? (1 - (@ * 0 + 1) / 3 * 3 < 1e-900)')
                    THEN NULL
                ELSE unpacked.value::text
            END
        FROM (SELECT jsonb_path_query_first({json}, 'strict $') AS value OFFSET 0) AS unpacked
    )
END
