// A library with the name of a transport and nothing in it that a transport needs.
extern const int pbox_hollow_transport;
const int pbox_hollow_transport = 1;
