// SPDX-License-Identifier: Apache-2.0
/// What kernel TCP takes for connections, beside rdmacm-utils' cmtime: all are begun at once, as there, or one after
/// the other.
///
///   tcp_connects PORT [SERVER COUNT]
///
/// Without SERVER it accepts until it is ended. The client prints microseconds a connection: all at once until each
/// stands, at once all closed, and one after the other, connect to accept at its median.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::exit(1);
}

sockaddr_in address_of(const char* text, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (text != nullptr && inet_pton(AF_INET, text, &address.sin_addr) != 1) give_up("address");
  return address;
}

/// Takes each connection, says a byte, and lets go of those that end.
[[noreturn]] void serve(int port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const sockaddr_in any = address_of(nullptr, port);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 || listen(listener, 1024) != 0)
    give_up("TCP port");
  std::vector<pollfd> watched{{listener, POLLIN, 0}};
  for (;;) {
    if (poll(watched.data(), watched.size(), -1) < 0) give_up("poll");
    for (size_t i = watched.size(); i-- > 1;) {
      if (watched[i].revents == 0) continue;
      close(watched[i].fd);
      watched.erase(watched.begin() + static_cast<ptrdiff_t>(i));
    }
    if (watched[0].revents == 0) continue;
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) give_up("accept");
    if (write(fd, "", 1) != 1) give_up("write");
    watched.push_back({fd, POLLIN, 0});
  }
}

int begin(const sockaddr_in& server, int flags) {
  const int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
  if (fd < 0 || (connect(fd, reinterpret_cast<const sockaddr*>(&server), sizeof server) != 0 && errno != EINPROGRESS))
    give_up("connect");
  return fd;
}

/// Until the server has taken it.
void wait_for_byte(int fd) {
  pollfd ready{fd, POLLIN, 0};
  char byte;
  if (poll(&ready, 1, 10'000) != 1 || read(fd, &byte, 1) != 1) give_up("no answer");
}

void measure(const sockaddr_in& server, size_t count) {
  std::vector<int> fds;
  double begun = now_us();
  for (size_t i = 0; i < count; ++i) fds.push_back(begin(server, SOCK_NONBLOCK));
  for (const int fd : fds) wait_for_byte(fd);
  const double together = (now_us() - begun) / static_cast<double>(count);
  begun = now_us();
  for (const int fd : fds) close(fd);
  const double closing = (now_us() - begun) / static_cast<double>(count);
  std::vector<double> each;
  for (size_t i = 0; i < count; ++i) {
    begun = now_us();
    const int fd = begin(server, 0);
    wait_for_byte(fd);
    each.push_back(now_us() - begun);
    close(fd);
  }
  std::nth_element(each.begin(), each.begin() + static_cast<ptrdiff_t>(count / 2), each.end());
  std::printf("%.2f %.2f %.2f\n", together, closing, each[count / 2]);
}

}  // namespace

int main(int count, char** words) {
  if (count == 2) serve(std::atoi(words[1]));
  if (count != 4) {
    std::fprintf(stderr, "usage: tcp_connects PORT [SERVER COUNT]\n");
    return 2;
  }
  measure(address_of(words[2], std::atoi(words[1])), static_cast<size_t>(std::atoi(words[3])));
  return 0;
}
