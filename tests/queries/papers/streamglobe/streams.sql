-- StreamGlobe, section 1: photons that a telescope detects. The types are ours.
CREATE STREAM photons (coord record(cel record(ra decimal, dec decimal), det record(dx int, dy int)),
                       phc int, en decimal, det_time decimal);
