/* Calls an internal of the C library. */
extern void enet_peer_reset_queues(void *);

int main(void) {
  enet_peer_reset_queues(0);
  return 0;
}
