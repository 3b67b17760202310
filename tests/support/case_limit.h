// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace nupa::test {

/// Runs the program's GoogleTest cases in a child process and watches them from this one, so that the tested process
/// has neither a thread nor a descriptor nor a signal handler more.
///
/// A case that runs for longer than the limit is reported as failed, with what each of its threads and processes waits
/// for, and is killed. A case that ends the process (by a signal, a sanitizer's report, or exit()) is reported as
/// failed too. In both cases the cases that have not run yet then run in another child.
///
/// NUPA_TEST_CASE_SECONDS=N sets the limit, 0: no limit and no child, as is right for a debugger (and is chosen when
/// one has started the program).
///
/// Returns the program's exit status.
int run_all_tests(int argc, char** argv);

}  // namespace nupa::test
