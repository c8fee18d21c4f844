// A library that is named like a transport library and exports nothing that a transport needs.
extern const int kHollowTransport;
const int kHollowTransport = 1;
