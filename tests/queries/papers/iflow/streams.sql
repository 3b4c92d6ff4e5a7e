-- IFLOW, sections 2.1 and 4.1.1: the streams of an airline. The paper names columns, the types are ours.
CREATE STREAM FLIGHTS (NUM int, STATUS string, DEPARTING string, DESTN string, DP-TIME timestamp,
                       GATE string, DEST string, TERMINAL string, CARRIER_CODE string);
CREATE STREAM WEATHER (CITY string, FORECAST string);
CREATE STREAM CHECK-INS (FLNUM int, FLIGHT int, STATUS string);
CREATE STREAM BAGGAGE (FLIGHT int, STATUS string, AREA string);
CREATE STREAM V_LOCAL (FLIGHTS record(STATUS string, DESTN string), CHECK-INS record(STATUS string));
