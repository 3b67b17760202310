// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The environment variables of NUPA: the one list that the readers in base/settings.h, `nupa doctor`, `nupa run`,
/// `nupa --help`, nupa(7) and docs/reference/environment.md use. `scripts/environment-page` writes the tables of that
/// page, and reads this file for it: each value here is a literal.
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nupa::base {

/// The kinds of values.
enum class Kind : uint8_t {
  kBoolean,
  kNumber,
  kWord,         ///< one of `choices`
  kText,         ///< text in the form that `form` describes, which its reader checks
  kFolder,       ///< its reader creates the folder and checks it
  kReadFile,     ///< a file that exists
  kWrittenFile,  ///< a file that is created, or the folder for it
};

/// A variable. Texts have the markup of the page; links are relative to docs/reference.
struct Setting {
  const char* name = "";
  Kind kind = Kind::kText;
  std::string_view group = {};    ///< the section of the page
  std::string_view readers = {};  ///< the libraries and programs that read it
  std::string_view usual = {};    ///< the default as a value; empty: there is none
  uint64_t least = 0;             ///< of a number
  uint64_t most = 0;              ///< of a number
  std::string_view unit = {};     ///< of a number, in the plural; empty: none
  std::string_view choices = {};  ///< of a word: the accepted ones, with a space between two
  std::string_view form = {};     ///< of another kind: what is accepted
  /// The default in words, where it is not a value.
  std::string_view usual_in_words = {};
  /// The purpose, in one paragraph without a full stop at its end. It begins with a small letter.
  std::string_view meaning = {};
};

inline constexpr Setting kSettings[] = {
    {.name = "NUPA_TRANSPORT",
     .kind = Kind::kText,
     .group = "Devices and transports",
     .readers = "libnupa, nupa",
     .usual = "auto",
     .form = "`auto`, `shm`, `pool`, `roce`, or a list in order of preference: `shm,roce`",
     .meaning = "the transports that a device may use"},
    {.name = "NUPA_REMAP",
     .kind = Kind::kWord,
     .group = "Devices and transports",
     .readers = "libnupa",
     .usual = "auto",
     .choices = "auto always never",
     .meaning = "how registered memory is shared ([memory registration](../design/memory-registration.md))"},
    {.name = "NUPA_COPY_ENGINE",
     .kind = Kind::kWord,
     .group = "Devices and transports",
     .readers = "libnupa, nupa",
     .usual = "auto",
     .choices = "auto none thread dsa",
     .meaning = "what copies large requests of shm beside the program ([copy engines](../design/copy-engines.md)). "
                "`auto`: Intel DSA if it can be used, otherwise the thread that posts; `thread`: threads of the "
                "library"},
    {.name = "NUPA_COPY_ENGINE_BYTES",
     .kind = Kind::kNumber,
     .group = "Devices and transports",
     .readers = "libnupa",
     .usual = "262144",
     .least = 1,
     .most = 2147483648,
     .unit = "bytes",
     .meaning = "the length of the shortest WRITE or READ that uses the copy engine"},
    {.name = "NUPA_COPY_THREADS",
     .kind = Kind::kNumber,
     .group = "Devices and transports",
     .readers = "libnupa",
     .usual = "1",
     .least = 1,
     .most = 16,
     .unit = "threads",
     .meaning = "the threads of `NUPA_COPY_ENGINE=thread`"},
    {.name = "NUPA_POOL",
     .kind = Kind::kText,
     .group = "Devices and transports",
     .readers = "libnupa, nupa",
     .form = "`MEDIUM,host=N` with MEDIUM `pci:0000:00:02.0`, `/dev/dax0.0` or `file:/PATH`, and `bar=N`, "
             "`coherence=auto`, `none` or `full`, `doorbell=auto` or `none`, `seed=N` behind it",
     .usual_in_words = "that of `/etc/nupa/pool.json`, or no pool",
     .meaning = "the memory that this host shares with other hosts, and its number among them"},
    {.name = "NUPA_RUNTIME_DIR",
     .kind = Kind::kFolder,
     .group = "Devices and transports",
     .readers = "libnupa, nupa",
     .form = "folder",
     .usual_in_words = "`$XDG_RUNTIME_DIR/nupa`, `/dev/shm/nupa-UID` or `/tmp/nupa-UID`",
     .meaning = "where the processes of a user find each other"},
    {.name = "XDG_RUNTIME_DIR",
     .kind = Kind::kFolder,
     .group = "Devices and transports",
     .readers = "libnupa, nupa",
     .form = "folder",
     .meaning = "see `NUPA_RUNTIME_DIR`"},
    {.name = "NUPA_SYSFS",
     .kind = Kind::kFolder,
     .group = "Devices and transports",
     .readers = "libnupa-preload",
     .form = "folder",
     .meaning = "the files that programs look for an adapter in ([sysfs](../design/sysfs.md)); `nupa run` sets it"},
    {.name = "NUPA_LOG",
     .kind = Kind::kWord,
     .group = "Devices and transports",
     .readers = "libnupa, libnupa_ccl, libnupa_sockets, nupa",
     .usual = "warn",
     .choices = "error warn info debug",
     .meaning = "messages on standard error"},
    {.name = "NUPA_EXPLAIN",
     .kind = Kind::kBoolean,
     .group = "Devices and transports",
     .readers = "libnupa, nupa",
     .usual = "off",
     .meaning = "on: a line on standard error for each verbs or rdma_cm call that fails, with the reason. "
                "`NUPA_LOG=info` has the lines, too"},
    {.name = "VERBS_LOG_LEVEL",
     .kind = Kind::kNumber,
     .group = "Devices and transports",
     .readers = "libibverbs",
     .usual = "0",
     .least = 0,
     .most = 4,
     .meaning = "messages of rdma-core's providers, as in its manual"},

    {.name = "NUPA_DEVICES",
     .kind = Kind::kText,
     .group = "Packets",
     .readers = "libnupa, nupa",
     .form = "interfaces: `eth0,eth1` gives `nupa0` and `nupa1`, `eth0+eth1` gives `nupa0` two",
     .usual_in_words = "all interfaces: `nupa0`, behind the device of the pool",
     .meaning = "the interfaces of each device ([between hosts](../guides/between-hosts.md#devices))"},
    {.name = "NUPA_CONGESTION",
     .kind = Kind::kWord,
     .group = "Packets",
     .readers = "libnupa",
     .usual = "tolerant",
     .choices = "tolerant none dcqcn swift cubic",
     .meaning = "congestion control of roce ([between hosts](../guides/between-hosts.md#congestion-control))"},
    {.name = "NUPA_ROCE_SOURCE_PORTS",
     .kind = Kind::kNumber,
     .group = "Packets",
     .readers = "libnupa",
     .usual = "1",
     .least = 1,
     .most = 4,
     .meaning = "UDP ports that packets leave from, for switches that spread flows by port"},
    {.name = "NUPA_ROCE_ICRC",
     .kind = Kind::kBoolean,
     .group = "Packets",
     .readers = "libnupa",
     .usual = "on",
     .meaning = "off: packets to peers that have it off as well carry no invariant CRC"},
    {.name = "NUPA_ROCE_PEERS",
     .kind = Kind::kWord,
     .group = "Packets",
     .readers = "libnupa",
     .usual = "any",
     .choices = "any standard",
     .meaning = "`standard`: only packets of the standard, and every peer is at port 4791"},

    {.name = "NUPA_CCL_ROOT",
     .kind = Kind::kText,
     .group = "Collectives",
     .readers = "libnupa_ccl, nupa ccl",
     .form = "unique id, `tcp://HOST:PORT`, `tcp://HOST:PORT?key=TEXT`, `file:///PATH`",
     .meaning = "the rendezvous of the ranks ([collectives](../guides/collectives.md#start-the-ranks)); `nupa launch` "
                "sets it"},
    {.name = "NUPA_RANK",
     .kind = Kind::kNumber,
     .group = "Collectives",
     .readers = "libnupa_ccl, nupa ccl",
     .least = 0,
     .most = 65535,
     .meaning = "the rank; `nupa launch` sets it. Other launchers' names: "
                "[collectives](../guides/collectives.md#start-the-ranks)"},
    {.name = "NUPA_WORLD_SIZE",
     .kind = Kind::kNumber,
     .group = "Collectives",
     .readers = "libnupa_ccl, nupa ccl",
     .least = 1,
     .most = 65536,
     .meaning = "the number of ranks; `nupa launch` sets it"},
    {.name = "NUPA_LOCAL_RANK",
     .kind = Kind::kNumber,
     .group = "Collectives",
     .readers = "the program",
     .least = 0,
     .most = 65535,
     .meaning = "the rank among those of this host; `nupa launch` sets it for the program, and NUPA does not read it"},
    {.name = "NUPA_LOCAL_SIZE",
     .kind = Kind::kNumber,
     .group = "Collectives",
     .readers = "the program",
     .least = 1,
     .most = 65536,
     .meaning = "the number of ranks on this host; `nupa launch` sets it for the program, and NUPA does not read it"},
    {.name = "NUPA_CCL_TIMEOUT",
     .kind = Kind::kNumber,
     .group = "Collectives",
     .readers = "libnupa_ccl, nupa_torch",
     .usual = "300",
     .least = 1,
     .most = 2147483647,
     .unit = "seconds",
     .meaning = "how long an operation waits for another rank"},
    {.name = "NUPA_CCL_CHECK",
     .kind = Kind::kBoolean,
     .group = "Collectives",
     .readers = "libnupa_ccl",
     .usual = "off",
     .meaning = "on, on all ranks: mismatched calls of ranks are reported"},
    {.name = "NUPA_CCL_DETERMINISTIC",
     .kind = Kind::kBoolean,
     .group = "Collectives",
     .readers = "libnupa_ccl",
     .usual = "off",
     .meaning = "on, on all ranks: each element is reduced in the order of the ranks"},
    {.name = "NUPA_CCL_READS",
     .kind = Kind::kBoolean,
     .group = "Collectives",
     .readers = "libnupa_ccl",
     .usual = "on",
     .meaning = "off: ranks of one host do not read each other's memory"},
    {.name = "NUPA_CCL_ALGO",
     .kind = Kind::kText,
     .group = "Collectives",
     .readers = "libnupa_ccl",
     .form = "`all_reduce=ring,broadcast=binomial`",
     .meaning = "algorithms to use where their conditions hold"},
    {.name = "NUPA_CCL_MAPPED_RANKS",
     .kind = Kind::kNumber,
     .group = "Collectives",
     .readers = "libnupa_ccl",
     .usual = "64",
     .least = 1,
     .most = 512,
     .unit = "ranks",
     .meaning = "the most ranks of a host that map each other's memory; with more, they exchange messages only"},
    {.name = "NUPA_CCL_SLOT_BYTES",
     .kind = Kind::kNumber,
     .group = "Collectives",
     .readers = "libnupa_ccl",
     .usual = "262144",
     .least = 1,
     .most = 1073741824,
     .unit = "bytes",
     .meaning = "the eager slots of each rank in shared memory, rounded up to pages"},
    {.name = "NUPA_CCL_TRACE",
     .kind = Kind::kWrittenFile,
     .group = "Collectives",
     .readers = "libnupa_ccl",
     .form = "file, or folder for it",
     .meaning = "each rank writes a trace to it ([collectives](../guides/collectives.md#see-where-the-time-goes))"},

    {.name = "NUPA_SOCKETS_CONFIG",
     .kind = Kind::kReadFile,
     .group = "Sockets",
     .readers = "libnupa_sockets",
     .form = "file of lines `program domain type protocol`",
     .usual_in_words = "every TCP stream",
     .meaning = "sockets that become rsockets "
                "([TCP programs](../guides/tcp-programs.md#which-connections-use-rdma))"},
    {.name = "NUPA_SOCKETS_CONNECT_MS",
     .kind = Kind::kNumber,
     .group = "Sockets",
     .readers = "libnupa_sockets",
     .usual = "1000",
     .least = 1,
     .most = 2147483647,
     .unit = "milliseconds",
     .meaning = "how long `connect` tries the rsocket before TCP"},
};

/// True if the table has the variable. Constant expressions ask this: with GCC's undefined behaviour sanitizer they
/// cannot compare an address with null.
constexpr bool is_setting(std::string_view name) {
  for (const Setting& each : kSettings)
    if (name == each.name) return true;
  return false;
}

/// The variable of this name, or null.
constexpr const Setting* find_setting(std::string_view name) {
  for (const Setting& each : kSettings)
    if (name == each.name) return &each;
  return nullptr;
}

/// Returns the choice `index` of a word, or an empty text if the word has fewer choices.
constexpr std::string_view choice_of(const Setting& one, size_t index) {
  std::string_view rest = one.choices;
  for (; index > 0 && !rest.empty(); --index)
    rest.remove_prefix(rest.find(' ') == rest.npos ? rest.size() : rest.find(' ') + 1);
  return rest.substr(0, rest.find(' '));
}

}  // namespace nupa::base
