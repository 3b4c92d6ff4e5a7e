"""CQ-DHT: continuous two-way equi-joins through the DHT (Idreos et al., ICDE 2006): SAI, DAI-Q, DAI-T and DAI-V."""
