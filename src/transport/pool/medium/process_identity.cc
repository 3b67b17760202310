// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/process_identity.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>

#include "base/random_seed.h"

namespace nupa::pool {

uint64_t random_key() {
  uint64_t key = 0;
  while (key >> 32 == 0) key = base::random_seed();
  return key;
}

ProcessLine describe_process(uint64_t instance, uint64_t incarnation) {
  ProcessLine line;
  line.instance = instance;
  line.incarnation = incarnation;
  line.pid = static_cast<uint32_t>(getpid());
  line.uid = geteuid();
  line.since_s = static_cast<uint64_t>(::time(nullptr));
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/comm", "re"), std::fclose);
  if (file != nullptr && std::fgets(line.command, sizeof line.command, file.get()) != nullptr)
    line.command[std::strcspn(line.command, "\n")] = '\0';
  return line;
}

}  // namespace nupa::pool
