// A library that is named like a transport library and exports nothing that a transport needs.
extern const int pbox_hollow_transport;
const int pbox_hollow_transport = 1;
