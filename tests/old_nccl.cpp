// An NCCL library that only reports its version, which is too old.
extern "C" int ncclGetVersion(int* version) {
  *version = 21003;
  return 0;
}
