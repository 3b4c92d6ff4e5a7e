"""The queries of StreamGlobe's paper."""

from __future__ import annotations

VELA = """\
$p/coord/cel/ra >= 120.0 and $p/coord/cel/ra <= 138.0
      and $p/coord/cel/dec >= -49.0 and $p/coord/cel/dec <= -40.0"""

Q1 = f"""<photons>
  {{ for $p in stream("photons")/photons/photon
    where {VELA}
    return <vela> {{ $p/coord/cel/ra }} {{ $p/coord/cel/dec }}
      {{ $p/phc }} {{ $p/en }} {{ $p/det_time }} </vela> }}
</photons>"""

Q3 = f"""<photons>
  {{ for $w in stream("photons")/photons/photon
    [{VELA.replace("$p/", "")}]
    |det_time diff 20 step 10|
    let $a := avg($w/en)
    return <avg_en> {{ $a }} </avg_en> }}
</photons>"""

Q4 = Q3.replace("diff 20 step 10", "diff 60 step 40").replace("return", "where $a >= 1.3\n    return")
