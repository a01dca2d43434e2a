"""Methods, local training and communication rounds, independent of data sets, engines and run directories."""
