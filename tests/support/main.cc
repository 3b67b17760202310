// SPDX-License-Identifier: Apache-2.0
#include "case_limit.h"

int main(int argc, char** argv) { return nupa::test::run_all_tests(argc, argv); }
