-- CQ-DHT, section 2: research papers in an e-learning network.
CREATE STREAM Document (Id int, Title string, Conference string, AuthorId int);
CREATE STREAM Authors (Id int, Name string, Surname string);
