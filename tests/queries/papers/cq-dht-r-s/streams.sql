-- CQ-DHT, sections 2 to 6: R and S have the attributes that its examples name.
CREATE STREAM R (A int, B int, C int, A1 int null, A2 int null);
CREATE STREAM S (A int, B int, C int, D int, E int, F int, B1 int null, B2 int null);
