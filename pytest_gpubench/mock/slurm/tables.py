"""The options of each command (Slurm 22.05, and Pyxis), in the short form that getopt.Parser reads.

``-`` takes no value, ``?`` may take one, ``=`` must. The first name of a word is the key.
"""

from __future__ import annotations

from .getopt import Arg

__all__ = ["NEWER", "PYXIS", "SACCT", "SBATCH", "SCANCEL", "SINFO", "SQUEUE", "SRUN"]

_REQUEST = """
account,A= acctg-freq= bb= bbf= begin,b= chdir,D= cluster-constraint= clusters,M,cluster= comment=
constraint,C= container= contiguous- core-spec,S= cores-per-socket= cpu-freq= cpus-per-gpu=
cpus-per-task,c= deadline= delay-boot= dependency,d= distribution,m= error,e= exclude,x= exclusive?
export= extra-node-info,B= gid= gpu-bind= gpu-freq= gpus,G= gpus-per-node= gpus-per-socket=
gpus-per-task= gres= gres-flags= help,h- hint= hold,H- input,i= job-name,J= licenses,L= mail-type=
mail-user= mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu= mincpus= network= nice? no-kill,k?
nodefile,F= nodelist,w= nodes,N= ntasks,n= ntasks-per-core= ntasks-per-gpu= ntasks-per-node=
ntasks-per-socket= open-mode= output,o= overcommit,O- oversubscribe,s,share- partition,p= power= prefer=
priority= profile= propagate? qos,q= quiet,Q- reboot- reservation= signal= sockets-per-node= spread-job-
switches= thread-spec= threads-per-core= time,t= time-min= tmp= uid= usage- use-min-nodes- verbose,v-
version,V- wckey= x11?
"""

SBATCH = (
    _REQUEST
    + """
array,a= batch= export-file= get-user-env? ignore-pbs- kill-on-invalid-dep= no-requeue- parsable-
requeue- test-only- wait,W- wait-all-nodes= wrap=
"""
)

SRUN = (
    _REQUEST
    + """
accel-bind= bcast? bcast-exclude= compress? cpu-bind= disable-status,X- epilog= exact- het-group=
immediate,I? jobid= kill-on-bad-exit,K? label,l- mpi= msg-timeout= multi-prog- no-allocate,Z- overlap-
preserve-env,E- prolog= pty- quit-on-interrupt- relative,r= resv-ports? send-libs? slurmd-debug=
task-epilog= task-prolog= test-only- threads,T= unbuffered,u- wait,W= interactive-
"""
)

PYXIS = {
    "container-image": Arg.REQUIRED,
    "container-mounts": Arg.REQUIRED,
    "container-workdir": Arg.REQUIRED,
    "container-name": Arg.REQUIRED,
    "container-save": Arg.REQUIRED,
    "container-env": Arg.REQUIRED,
    "container-mount-home": Arg.NO,
    "no-container-mount-home": Arg.NO,
    "container-remap-root": Arg.NO,
    "no-container-remap-root": Arg.NO,
    "container-entrypoint": Arg.NO,
    "no-container-entrypoint": Arg.NO,
    "container-entrypoint-log": Arg.NO,
    "container-writable": Arg.NO,
    "container-readonly": Arg.NO,
}
"""Options that the Pyxis plugin adds to srun (and to sbatch)."""
NEWER = {"segment": ((23, 11), Arg.REQUIRED), "tres-per-task": ((23, 11), Arg.REQUIRED)}
"""Options that came after 22.05, with the version they came in."""
SQUEUE = """ account,A= all,a- array,r- array-unique- clusters,M,cluster= federation- Format,O= format,o=
help- hide- iterate,i= job,j,jobs= json- licenses,L= local- long,l- me- name,n= noconvert-
nodelist,w,nodes= noheader,h- only-job-state- partition,p= priority,P- qos,q= reservation,R= sibling-
sort,S= start- states,t,state= step,s,steps? usage- user,u,users= verbose,v- version,V- yaml-
"""

SCANCEL = """
account,A= batch,b- clusters,M= ctld- full,f- help- hurry,H- interactive,i- me- name,n,jobname=
nodelist,w= partition,p= qos,q= quiet,Q- reservation,R= sibling= signal,s= state,t,states= usage- user,u=
verbose,v- version,V- wckey=
"""

SINFO = """
all,a- clusters,M= dead,d- exact,e- federation- Format,O= format,o= help- hide- iterate,i= json-
list-reasons,R- local- long,l- noconvert- Node,N- nodes,n= noheader,h- partition,p= reservation,T-
responding,r- sort,S= states,t= summarize,s- usage- verbose,v- version,V- yaml-
"""

SACCT = """
accounts,A= allocations,X- allusers,a- brief,b- cluster,M,clusters= completion,c- delimiter=
duplicates,D- endtime,E= format,o= group,g,gid= helpformat,e- help,h- jobs,j,job= json- local-cluster,L-
long,l- name= ncpus,I= nnodes,i= noconvert- nodelist,N= noheader,n- parsable,p- parsable2,P- partition,r=
qos,q= starttime,S= state,s= truncate,T- uid,u,user= units= usage,U- verbose,v- version,V- yaml-
"""
